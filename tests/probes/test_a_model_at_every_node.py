"""Probe (d): a tree of three levels with a model at every node, which mixes with those of its parent and children."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tests.probes.conftest import POPULATION, Run, accuracy
from undergrowth.core import Context, Method, Packet, Server, State, Task, WeightedMean, Weights
from undergrowth.learning import GradientClient, Trained

UP, DOWN = 0.8, 0.6


def mixed(mine: Weights, theirs: Weights, rate: float) -> dict[str, torch.Tensor]:
    return {name: torch.lerp(value, theirs[name], rate) for name, value in mine.items()}


class Leaf(GradientClient):
    """Keeps a model, mixes it with the received one, trains it and sends it up."""

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        return mixed(own["model"], down.tensors, DOWN) if own else down.tensors

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        return trained.packet, {"model": dict(trained.tensors)}


@dataclass(frozen=True)
class Merging(Server):
    reducer = WeightedMean()

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        return {**state, "model": mixed(state["model"], down.tensors, DOWN)}

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        return {"model": mixed(state["model"], combined.tensors, UP), "samples": combined.scalars["samples"]}

    def report(self, task: Task, state: State, total: Packet | None, context: Context) -> Packet | None:
        return None if total is None else Packet(state["model"], {"samples": state["samples"]})


@dataclass(frozen=True)
class BothWays(Method):
    client = Leaf()
    server = Merging()

    def server_at(self, depth: int) -> Server:
        return self.server


def test_every_node_has_a_different_model(run: Run) -> None:
    simulation, world = run(BothWays(), rounds=12, topology="tree:2x2x2", cycles=2)
    assert len(simulation.nodes) == 1 + 2 + 4
    models = {name: node.state["model"] for name, node in simulation.nodes.items()}
    models.update((device, state["model"]) for device, state in world.states.all().items())
    assert len({value["head.weight"].sum().item() for value in models.values()}) == 1 + 2 + 4 + 8
    root = accuracy(world.task.model(models["server"], POPULATION.central_test().x))
    assert root > 0.75
    assert simulation.nodes["edge-00"].round == 12 * 2 * 2  # two rounds for each of its parent's two
