"""The tiny federation of the reference loops in a topology of several levels."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from undergrowth.core import Method, Node, NodePlace, Task
from undergrowth.engines import SerialEngine, World
from undergrowth.simulation import Simulation

from .tiny_federation import SEED, SHARDS, TASK, Devices, GivenClock

TWO_LEVELS = {"root": ("left", "right"), "left": ("a", "b"), "right": ("c",)}
THREE_LEVELS = {"root": ("top",), "top": ("left", "right"), "left": ("a", "b"), "right": ("c",)}
STAR = {"root": ("a", "b", "c")}
EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class CutClock(GivenClock):
    """Also says which nodes cannot be reached, by the time."""

    cuts: Sequence[tuple[str, float, float]] = ()  # node, from, until

    def away(self, now: float) -> Container[str]:
        return {name for name, begin, end in self.cuts if begin <= now < end}


def simulation(
    method: Method,
    rounds: int,
    children: Mapping[str, tuple[str, ...]] = TWO_LEVELS,
    task: Task = TASK,
    paces: Mapping[str, float] = EMPTY,
    places: Mapping[str, NodePlace] = EMPTY,
    cuts: Sequence[tuple[str, float, float]] = (),
) -> Simulation:
    """A started simulation of the tree `children`; `places` has what is special about single nodes."""
    parents = {child: node for node, below in children.items() for child in below}
    nodes = {}
    for name, below in children.items():
        depth, above = 0, name
        while above in parents:
            depth, above = depth + 1, parents[above]
        place = replace(places.get(name, NodePlace()), depth=depth)
        cycles = rounds if depth == 0 else place.rounds or method.rounds_at(depth)
        inner = frozenset(child for child in below if child in children)
        nodes[name] = Node(
            name, method.server_for(place), task, below, cycles, seed=SEED, is_root=depth == 0, nodes=inner,
            devices=len(SHARDS), samples=sum(len(shard) for shard in SHARDS.values()),
        )  # fmt: skip
    world = World(task, method.client, {name: node.server for name, node in nodes.items()}, Devices())
    above = {node: parent for node, parent in parents.items() if node in children}
    built = Simulation(nodes, above, SerialEngine(), world, CutClock({}, paces, cuts))
    built.start()
    return built


def run_tree(*arguments: Any, **settings: Any) -> Simulation:
    """The simulation after its last round."""
    built = simulation(*arguments, **settings)
    for _ in built.rounds():
        pass
    return built
