"""Topologies: which node or device is below which node."""

from undergrowth.topology.topology import ROOT, NodeSettings, Topology, build_topology

__all__ = ["ROOT", "NodeSettings", "Topology", "build_topology"]
