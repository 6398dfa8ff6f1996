"""Topologies: which node or device is below which node."""

from undergrowth.topology.topology import ROOT, Topology, build_topology

__all__ = ["ROOT", "Topology", "build_topology"]
