"""FedAsync (Xie et al. 2019): every model that comes back is mixed into the global one at once.

Down: w. A device: E epochs of SGD (the paper adds a proximal term: mu). Up: w_k.
Server: w ← (1 − α_s)·w + α_s·w_k with α_s = alpha·s(age); the age counts the versions since the device was sent w.
Models that come in the same instant are mixed in one after the other, in the order of their names.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedasync", options={"alpha": 0.6}, rounds=20)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from undergrowth.core import (
    Collect,
    Context,
    Method,
    Packet,
    Plan,
    Progress,
    Server,
    State,
    Task,
    View,
    option,
)  # fmt: skip
from undergrowth.learning import CrossEntropy, GradientClient, Proximal, Staleness, unlike_model


@dataclass(frozen=True)
class Mixing(Server):
    alpha: float
    concurrency: int
    staleness: Staleness
    reducer = Collect()
    asynchronous = True
    waits_for_all = False

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        return self.ask(task, view, context, Packet(state["model"]), self.concurrency - len(view.out))

    def check(self, task: Task, up: Packet) -> str | None:
        return unlike_model(task, up)

    def ready(self, progress: Progress) -> bool:
        return progress.arrived >= 1

    def step(self, task: Task, state: State, total: Packet, context: Context) -> State:
        model = state["model"]
        for _, up in sorted(total.parts().items()):
            rate = self.alpha * self.staleness(int(up.scalars["age"]))
            model = {
                name: torch.lerp(value, up.tensors[name].to(value.dtype), rate)
                if value.is_floating_point()
                else torch.maximum(value, up.tensors[name])
                for name, value in model.items()
            }
        return {**state, "model": model}


@dataclass(frozen=True)
class FedAsync(Method):
    alpha: float = option(0.6, "share of a fresh model in the mixture", above=0, at_most=1)
    staleness: str = option("polynomial:0.5", "how the share shrinks with age: constant, polynomial:A or hinge:A:B")
    concurrency: int = option(10, "devices at work at any time", at_least=1)
    mu: float = option(0.0, "strength of the pull towards the received model", at_least=0)

    @property
    def client(self) -> GradientClient:  # type: ignore[override]
        return GradientClient(CrossEntropy() + Proximal(self.mu) if self.mu else CrossEntropy())

    def check(self) -> None:
        Staleness(self.staleness)(0)

    @property
    def server(self) -> Mixing:  # type: ignore[override]
        return Mixing(self.alpha, self.concurrency, Staleness(self.staleness))
