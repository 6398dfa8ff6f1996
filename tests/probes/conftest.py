"""A small federation for the probes, run to its end with and without a restart after every round."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from undergrowth.core import Method, Model, Node, Shard, Task, Train, pack, unpack
from undergrowth.data import load, partition_dataset
from undergrowth.engines import SerialEngine, World
from undergrowth.models import builder
from undergrowth.simulation import Clock, Simulation, Timing
from undergrowth.topology import build_topology

DATA = load("digits")
POPULATION = partition_dataset(DATA, "dirichlet:0.5", 8, 0, holdout=0)
Run = Callable[..., tuple[Simulation, World]]


class UnequalDevices(Clock):
    """Devices of different speeds, so that an asynchronous server receives their uploads in a mixed order."""

    def timing(self, device: str, *_: object) -> Timing:
        return Timing(seconds_compute=1.0 + 0.37 * int(device[-1]))


def federation(method: Method, rounds: int, model: str, topology: str, cycles: int) -> tuple[Simulation, World]:
    public = Shard(POPULATION.central_test().x[:100], POPULATION.central_test().y[:100])
    functional = Model(builder(model, DATA.shape, DATA.classes))
    task = Task(functional, 10, Train(rounds=rounds, batch=16), public=public)
    shape = build_topology(topology, POPULATION.devices)
    nodes = {
        name: Node(
            name, method.server_at(shape.depth[name]), task, children, rounds if shape.depth[name] == 0 else cycles,
            seed=7, is_root=shape.depth[name] == 0, nodes=frozenset(c for c in children if c in shape.children),
        )
        for name, children in shape.children.items()
    }  # fmt: skip
    world = World(task, method.client, {name: node.server for name, node in nodes.items()}, POPULATION)
    simulation = Simulation(nodes, shape.parents, SerialEngine(), world, UnequalDevices())
    simulation.start()
    return simulation, world


@pytest.fixture
def run() -> Run:
    """Runs a method twice, the second time with a restart from packed state after every round, and compares."""

    def go(method: Method, rounds: int, model: str = "logistic", topology: str = "star", cycles: int = 1) -> Any:
        simulation, world = federation(method, rounds, model, topology, cycles)
        for _ in simulation.rounds():
            simulation.ledger.take()
        again, other = federation(method, rounds, model, topology, cycles)
        while not again.root.done:
            next(again.rounds())
            text_and_tensors = pack([again.snapshot(), other.states.snapshot()])
            again, other = federation(method, rounds, model, topology, cycles)
            state, states = unpack(*text_and_tensors)
            again.restore(state)
            other.states.restore(states.items())
        assert fingerprint(again.root.state) == fingerprint(simulation.root.state)
        assert fingerprint(dict(other.states.all())) == fingerprint(dict(world.states.all()))
        assert again.ledger.totals == simulation.ledger.totals
        return simulation, world

    return go


def fingerprint(state: Any) -> str:
    tensors, text = pack(state)
    return hashlib.sha256(text.encode() + b"".join(t.numpy().tobytes() for t in tensors.values())).hexdigest()


def accuracy(logits: Tensor) -> float:
    return float((logits.argmax(1) == POPULATION.central_test().y).float().mean())
