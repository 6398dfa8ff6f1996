"""Small federations whose devices upload numbers that a test can foresee, on clocks that a test sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from undergrowth.core import (
    Context,
    InnerServer,
    Model,
    Node,
    Packet,
    Plan,
    Progress,
    Reducer,
    Server,
    Shard,
    State,
    Task,
    Train,
    View,
    WeightedMean,
)
from undergrowth.devices import LinkProfile
from undergrowth.engines import SerialEngine, World
from undergrowth.learning import AveragingServer
from undergrowth.simulation import Clock, Simulation, Timing
from undergrowth.topology import build_topology

TASK = Task(Model(lambda: nn.Linear(2, 2)), classes=2, train=Train(rounds=3))


class Given(Clock):
    """A clock with the seconds that a test gives; all others take one second."""

    def __init__(self, seconds: Mapping[str, float] | None = None) -> None:
        self.seconds = seconds or {}

    def timing(self, device: str, *_: object) -> Timing:
        return Timing(0.0, self.seconds.get(device, 1.0), 0.0, flops=10.0, memory=7, joules=0.5)


class NoData:
    """Devices with one sample each that nobody looks at."""

    def train(self, device: str) -> Shard:
        return Shard(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))


@dataclass
class Nudge:
    """Adds the device's number and some noise to the model; keeps what it was asked, in order."""

    bad: Mapping[str, Any] = field(default_factory=dict)  # device → a function that spoils its upload
    asked: list[tuple[str, int, int]] = field(default_factory=list)

    def local(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Packet, State]:
        self.asked.append((context.node, context.round, context.turn))
        noise = torch.randn((), generator=context.generator("noise"))
        moved = {name: value + int(context.node[-1]) + noise for name, value in down.tensors.items()}
        up = Packet(moved, {"samples": 1.0 + int(context.node[-1])})
        spoil = self.bad.get(context.node)
        return (spoil(up) if spoil else up), {"times": own.get("times", 0) + 1}


@dataclass(frozen=True)
class Patient(AveragingServer):
    """Averages, and wants every upload by itself."""

    waits_for_all = False


@dataclass(frozen=True)
class Buffer(Server):
    """Keeps `concurrency` devices at work and steps whenever `goal` uploads are there."""

    goal: int = 2
    concurrency: int = 3
    reducer: Reducer = WeightedMean(discount=lambda age: (1 + age) ** -0.5)
    asynchronous = True
    waits_for_all = False

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        free = max(0, self.concurrency - len(view.out))
        return Plan(dict.fromkeys(view.idle[:free], Packet(state["model"])))

    def ready(self, progress: Progress) -> bool:
        return progress.arrived >= self.goal

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        return {**state, "model": {name: value.float() for name, value in combined.tensors.items()}}


def devices(count: int) -> list[str]:
    return [f"device-{number}" for number in range(count)]


def federation(
    server: Server,
    count: int = 4,
    topology: str = "star",
    seconds: Mapping[str, float] | None = None,
    bad: Mapping[str, Any] | None = None,
    deadline: float | None = None,
    rounds: int = 3,
    links: Mapping[str, LinkProfile] | None = None,
    deadlines: Mapping[str, float] | None = None,
) -> tuple[Simulation, World]:
    def task_of(name: str) -> Task:
        return replace(TASK, train=replace(TASK.train, deadline=(deadlines or {}).get(name, deadline)))

    task = task_of("")
    shape = build_topology(topology, devices(count))
    nodes = {
        name: Node(
            name, server if depth == 0 else InnerServer(server), task_of(name), shape.children[name],
            cycles=rounds if depth == 0 else 1, seed=5, is_root=depth == 0,
            nodes=frozenset(child for child in shape.children[name] if child in shape.children),
        )
        for name, depth in shape.depth.items()
    }  # fmt: skip
    world = World(task, Nudge(bad or {}), {name: node.server for name, node in nodes.items()}, NoData())
    simulation = Simulation(nodes, shape.parents, SerialEngine(), world, Given(seconds), links)
    simulation.start()
    return simulation, world


def drive(simulation: Simulation) -> tuple[list[Any], list[Any]]:
    """All rounds and all ledger entries of a run to its end."""
    ends = [end for some in simulation.rounds() for end in some]
    return ends, simulation.ledger.take()


def same_model(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def close_model(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[name], b[name], rtol=1e-5, atol=1e-6) for name in a)
