"""Topologies: which node or device is below which node."""

from undergrowth.topology.build import build_topology, parse_widths
from undergrowth.topology.drawing import draw_svg, draw_text
from undergrowth.topology.topology import ROOT, NodeSettings, Topology
from undergrowth.topology.topology_file import devices_named, read_content

__all__ = [
    "ROOT", "NodeSettings", "Topology", "build_topology", "devices_named", "draw_svg", "draw_text", "parse_widths",
    "read_content",
]  # fmt: skip
