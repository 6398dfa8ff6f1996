"""FedAsync (Xie et al. 2019): the server mixes every model into the global one as soon as it arrives.

Down: w. A device: E epochs of SGD (the paper adds a proximal term: mu). Up: w_k.
Server: w ← (1 − α_s)·w + α_s·w_k with α_s = alpha·s(age); the age counts the versions since the device was sent w.
Models that arrive at the same instant are mixed in one after the other, in the order of their devices' names. A model
that was trained on no sample, because BatchNorm cannot train on a single one, is left out.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedasync", options={"alpha": 0.6}, rounds=20)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from undergrowth.core import Collect, Context, Method, Packet, Plan, Progress, Server, State, Task, View, option
from undergrowth.core.names import MODEL
from undergrowth.learning import GradientClient, Proximal, Staleness, TaskLoss, model_mismatch
from undergrowth.learning.servers import has_no_samples


@dataclass(frozen=True)
class FedAsyncServer(Server):
    options: FedAsync
    reducer = Collect()
    asynchronous = True
    waits_for_all = False
    ignored_settings = frozenset({"fleet.deadline", "train.over_select", "train.quorum", "train.sample"})

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        return self.ask(task, view, context, Packet(state[MODEL]), self.options.concurrency - len(view.out))

    def check(self, task: Task, up: Packet) -> str | None:
        return model_mismatch(task, up)

    def ready(self, progress: Progress) -> bool:
        return progress.arrived >= 1

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        model, weight = state[MODEL], Staleness(self.options.staleness)
        for _, up in sorted(combined.parts().items()):
            if has_no_samples(up):
                continue
            rate = self.options.alpha * weight(int(up.scalars["age"]))
            model = {
                name: torch.lerp(value, up.tensors[name].to(value.dtype), rate)
                if value.is_floating_point()
                else torch.maximum(value, up.tensors[name])
                for name, value in model.items()
            }
        return {**state, MODEL: model}


@dataclass(frozen=True)
class FedAsync(Method):
    alpha: float = option(0.6, "weight of a fresh model in the mixture", above=0, at_most=1)
    staleness: str = option("polynomial:0.5", "how the weight falls with age: constant, polynomial:A or hinge:A:B")
    concurrency: int = option(10, "devices at work at any time", at_least=1)
    mu: float = option(0.0, "strength of the proximal term", at_least=0)

    @property
    def client(self) -> GradientClient:
        return GradientClient(TaskLoss() + Proximal(self.mu) if self.mu else TaskLoss())

    def check(self) -> None:
        Staleness(self.staleness)

    @property
    def server(self) -> FedAsyncServer:
        return FedAsyncServer(self)
