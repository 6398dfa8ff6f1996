"""Topologies: a star, or levels of edge servers between the root and the devices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from undergrowth.core import InputError

ROOT = "server"


@dataclass(frozen=True)
class NodeSettings:
    """What is special about one node. None: as for all nodes."""

    deadline: float | None = None  # simulated seconds that its rounds may last
    link: str | None = None  # the profile of the link to its parent


@dataclass(frozen=True)
class Topology:
    """The children of every node, parents first. A child that is not a node is a device."""

    children: dict[str, tuple[str, ...]]
    depth: dict[str, int]
    settings: Mapping[str, NodeSettings] = field(default_factory=dict)  # of the nodes that have their own

    @property
    def parents(self) -> dict[str, str]:
        """The parent of every node except the root."""
        return {child: node for node, children in self.children.items() for child in children if child in self.children}

    @property
    def deadlines(self) -> dict[str, float]:
        """The deadlines of the nodes that have their own."""
        return {node: each.deadline for node, each in self.settings.items() if each.deadline is not None}

    def of(self, node: str) -> NodeSettings:
        """The settings of a node."""
        return self.settings.get(node, NodeSettings())


def build_topology(text: str, devices: Sequence[str]) -> Topology:
    """The topology of a setting: `star`, or `tree:4x5` for four edge servers with five devices each.

    `tree:2x4x5` has two levels of servers below the root.
    """
    widths = _parse_widths(text)
    if len(set(devices)) < len(devices):
        raise InputError("devices: two devices have the same name; names must be unique")
    if widths and math.prod(widths) != len(devices):
        raise InputError(
            f"topology '{text}' has room for {math.prod(widths)} devices and there are {len(devices)}; "
            f"the numbers must multiply to {len(devices)}"
        )
    children: dict[str, tuple[str, ...]] = {}
    depth = {ROOT: 0}
    level = [ROOT]
    for number, width in enumerate(widths[:-1], 1):
        prefix = "edge" if number == len(widths) - 1 else f"level{number}"
        below = [f"{prefix}-{position:02d}" for position in range(len(level) * width)]
        for position, node in enumerate(level):
            children[node] = tuple(below[position * width : (position + 1) * width])
        depth.update(dict.fromkeys(below, number))
        level = below
    devices_per_node = len(devices) // len(level)
    for position, node in enumerate(level):
        children[node] = tuple(devices[position * devices_per_node : (position + 1) * devices_per_node])
    clash = sorted(depth.keys() & set(devices))
    if clash:
        raise InputError(f"devices: '{clash[0]}' is the name of a server in topology '{text}'; rename the device")
    return Topology(children, depth)


def _parse_widths(text: str) -> list[int]:
    kind, _, sizes = text.partition(":")
    if kind == "star" and not sizes:
        return []
    if kind == "tree":
        parts = sizes.split("x")
        if len(parts) > 1 and all(part.isdigit() and int(part) > 0 for part in parts):
            return [int(part) for part in parts]
    raise InputError(f"topology '{text}' is not known; write star, or tree:4x5 for 4 edge servers with 5 devices each")
