"""FedBuff (Nguyen et al. 2022): no rounds; the server steps whenever K changes have come, however old they are.

Down: w. A device: E epochs of SGD. Up: Δ_k = w_k − w and n_k. `concurrency` devices are at work at any time; who
comes back is replaced at once. With K changes in the buffer: w ← w + server_lr·Σ p_k·s(age_k)·Δ_k, where the age
counts the versions since the device was sent w. The paper weighs all devices alike (weighting="uniform"); here
p_k = n_k / Σ n by default, so that K = concurrency = all devices, equally fast, is FedAvg. The statistics of BatchNorm
take their mean change whatever server_lr is, and its counters the largest that came.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedbuff", options={"buffer": 5, "concurrency": 10}, rounds=4)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from undergrowth.core import (
    Context,
    Method,
    Named,
    Packet,
    Plan,
    Progress,
    Reducer,
    Server,
    State,
    Task,
    View,
    WeightedMean,
    option,
)  # fmt: skip
from undergrowth.learning import GradientClient, Staleness, unlike_model


@dataclass(frozen=True)
class SendsChange(GradientClient):
    """Sends what changed: the server no longer has the version that this device started from."""

    def send(self, task: Task, down: Packet, trained: Packet, own: State) -> tuple[Packet, State]:
        change = {
            name: value - down.tensors[name] if value.is_floating_point() else value  # counters as they are
            for name, value in trained.tensors.items()
        }
        count = Packet(scalars={"samples": trained.scalars["samples"]})
        return Packet.join({"change": Packet(change, trained.scalars), "count": count}), own


@dataclass(frozen=True)
class Buffer(Server):
    buffer: int
    concurrency: int
    lr: float
    weight: str | None
    staleness: Staleness
    asynchronous = True
    waits_for_all = False

    @property
    def reducer(self) -> Reducer:
        return Named({"change": WeightedMean(self.weight, self.staleness), "count": WeightedMean(self.weight)})

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        return self.ask(task, view, context, Packet(state["model"]), self.concurrency - len(view.out))

    def check(self, task: Task, up: Packet) -> str | None:
        return unlike_model(task, up.part("change"))

    def ready(self, progress: Progress) -> bool:
        return progress.arrived >= self.buffer

    def step(self, task: Task, state: State, total: Packet, context: Context) -> State:
        change, weight = total.part("change"), self.weight or "uploads"
        everything = total.part("count").scalars[weight]
        if not everything:
            return state
        # The mean is over discounted weights; a stale buffer must also make a smaller step.
        share = change.scalars[weight] / everything
        moved = {}
        for name, value in state["model"].items():
            if not value.is_floating_point():
                moved[name] = torch.maximum(value, change.tensors[name])
            elif name in task.model.parameters:
                moved[name] = value + (self.lr * share * change.tensors[name]).to(value.dtype)
            else:
                # Statistics have no rate of the server's; and an old change must not make a variance negative.
                after = value + (share * change.tensors[name]).to(value.dtype)
                moved[name] = after.clamp_min(0) if name.endswith("running_var") else after
        return {**state, "model": moved}


@dataclass(frozen=True)
class FedBuff(Method):
    buffer: int = option(5, "changes that make a step", at_least=1)
    concurrency: int = option(10, "devices at work at any time", at_least=1)
    server_lr: float = option(1.0, "step of the server", at_least=0)
    staleness: str = option("polynomial:0.5", "weight of an old change: constant, polynomial:A or hinge:A:B")
    weighting: str = option("samples", "how changes are weighed besides their age", choices=("samples", "uniform"))

    client = SendsChange()

    def check(self) -> None:
        Staleness(self.staleness)(0)

    @property
    def server(self) -> Buffer:  # type: ignore[override]
        weight = "samples" if self.weighting == "samples" else None
        return Buffer(self.buffer, self.concurrency, self.server_lr, weight, Staleness(self.staleness))
