"""Topology: the children of every node, and settings of single nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from undergrowth.core import InputError

ROOT = "server"
Groups = Callable[[str], Sequence[str]]  # name of a field → its value at each device


@dataclass(frozen=True)
class NodeSettings:
    """What a topology file says about one node. None: as for all nodes."""

    rounds: int | None = None  # for one ask of the parent
    sample: float | None = None  # fraction of its devices that it asks in a round
    quorum: float | None = None  # fraction of these whose answers end a round
    deadline: float | None = None  # simulated seconds that its rounds may last
    asynchronous: bool | None = None  # whether it goes on without waiting for all its children
    proxy: float | Mapping[str, Any] | None = None  # fraction of the run's public data that it has, or a data set
    link: str | None = None  # the profile of the link to its parent

    @property
    def given(self) -> dict[str, Any]:
        """The settings that are not None."""
        return {name: value for name, value in vars(self).items() if value is not None}


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


def build_levels(widths: Sequence[int], per_server: Sequence[int], devices: Sequence[str], what: str) -> Topology:
    """Levels of servers, and below those of the last level as many devices as `per_server` says for each.

    `widths`: the number of children of the root, of the servers one link below it, and so on.
    """
    children: dict[str, tuple[str, ...]] = {}
    depth = {ROOT: 0}
    level = [ROOT]
    for number, width in enumerate(widths, 1):
        prefix = "edge" if number == len(widths) else f"level{number}"
        below = [f"{prefix}-{position:02d}" for position in range(len(level) * width)]
        for position, node in enumerate(level):
            children[node] = tuple(below[position * width : (position + 1) * width])
        depth.update(dict.fromkeys(below, number))
        level = below
    start = 0
    for node, count in zip(level, per_server, strict=True):
        children[node] = tuple(devices[start : start + count])
        start += count
    check_names(depth, devices, what)
    return Topology(children, depth)


def check_names(nodes: Mapping[str, object], devices: Sequence[str], what: str) -> None:
    """Raise an InputError if a server has the name of a device."""
    clash = sorted(nodes.keys() & set(devices))
    if clash:
        raise InputError(f"devices: '{clash[0]}' is the name of a server in {what}; rename the device")
