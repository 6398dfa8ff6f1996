"""FedAvgM (Hsu et al. 2019): FedAvg with momentum at the server.

v ← momentum·v + Δ and w ← w + server_lr·v, where Δ is the weighted mean of w_k − w. Buffers of BatchNorm are averaged
without momentum.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedavgm", options={"momentum": 0.9}, rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from undergrowth.core import Context, Method, Packet, Server, State, Task, WeightedMean, option
from undergrowth.core.names import MODEL
from undergrowth.learning import GradientClient, model_mismatch
from undergrowth.learning.servers import has_no_samples, mean_changes, with_mean_buffers


@dataclass(frozen=True)
class MomentumServer(Server):
    options: FedAvgM
    reducer = WeightedMean()

    def init(self, task: Task, context: Context) -> State:
        state = super().init(task, context)
        return {**state, "velocity": {k: torch.zeros_like(state[MODEL][k]) for k in task.model.parameters}}

    def check(self, task: Task, up: Packet) -> str | None:
        return model_mismatch(task, up)

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        if has_no_samples(combined):
            return state
        model, velocity = state[MODEL], dict(state["velocity"])
        for name, change in mean_changes(task, model, combined).items():
            velocity[name] = velocity[name] * self.options.momentum + change
        updated = {name: model[name] + self.options.server_lr * velocity[name] for name in velocity}
        return {**state, MODEL: {**with_mean_buffers(task, model, combined), **updated}, "velocity": velocity}


@dataclass(frozen=True)
class FedAvgM(Method):
    momentum: float = option(0.9, "fraction of the last step that is kept", at_least=0, below=1)
    server_lr: float = option(1.0, "step of the server", at_least=0)

    client = GradientClient()

    @property
    def server(self) -> MomentumServer:
        return MomentumServer(self)
