"""Probe (b): each device receives a smaller model of a different width and sends logits once; the server distils."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.probes.conftest import POPULATION, Run, accuracy
from undergrowth.core import Client, Context, Method, Packet, Plan, Server, Shard, State, Sum, Task, View, Weights


def forward(weights: Weights, x: Tensor) -> Tensor:
    """The logits of an mlp; its width is that of the weights."""
    hidden = F.relu(F.linear(x.flatten(1), weights["hidden1.0.weight"], weights["hidden1.0.bias"]))
    return F.linear(hidden, weights["head.weight"], weights["head.bias"])


def trained(weights: Weights, x: Tensor, y: Tensor, steps: int, loss: object = F.cross_entropy) -> dict[str, Tensor]:
    weights = {name: value.clone().requires_grad_() for name, value in weights.items()}
    optimiser = torch.optim.Adam(weights.values(), lr=0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(forward(weights, x), y).backward()  # type: ignore[operator]
        optimiser.step()
    return {name: value.detach() for name, value in weights.items()}


class OnItsOwn(Client):
    def local(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Packet, State]:
        model = trained(down.tensors, shard.x, shard.y, steps=60)
        counts = torch.bincount(shard.y, minlength=task.classes).float()
        with torch.no_grad():
            weighed = forward(model, task.public.x) * counts  # type: ignore[union-attr]
        return Packet({"logits": weighed, "counts": counts}), {"model": model}


class Distilling(Server):
    reducer = Sum()

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        return Plan({child: Packet(self.thinner(state["model"], 8 + 8 * i)) for i, child in enumerate(view.idle)})

    def thinner(self, model: Weights, width: int) -> dict[str, Tensor]:
        return {
            name: value[:, :width] if name == "head.weight" else value if name == "head.bias" else value[:width]
            for name, value in model.items()
        }

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        teacher = combined.tensors["logits"] / combined.tensors["counts"].clamp_min(1)
        return {"model": trained(state["model"], task.public.x, teacher, 150, F.mse_loss)}  # type: ignore[union-attr]


@dataclass(frozen=True)
class Distillation(Method):
    client = OnItsOwn()
    server = Distilling()


def test_a_full_model_is_distilled_from_small_ones(run: Run) -> None:
    simulation, world = run(Distillation(), rounds=1, model="mlp")
    widths = [state["model"]["head.bias"].shape[0] for state in world.states.all().values()]
    hidden = [state["model"]["head.weight"].shape[1] for state in world.states.all().values()]
    assert set(widths) == {10} and hidden == [8 + 8 * i for i in range(8)]
    assert accuracy(forward(simulation.root.state["model"], POPULATION.central_test().x)) > 0.6
    assert simulation.ledger.totals.bytes_up == 8 * 4 * (100 * 10 + 10)
