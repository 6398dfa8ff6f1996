"""FedAdam, FedYogi, FedAdagrad (Reddi et al. 2021): an adaptive optimiser at the server.

Δ is the weighted mean of w_k − w (unweighted in the paper; all methods here weigh by samples).
m ← beta1·m + (1 − beta1)·Δ and w ← w + server_lr·m / (√v + tau). v starts at tau²; with
fedadam v ← beta2·v + (1 − beta2)·Δ², fedyogi v ← v − (1 − beta2)·Δ²·sign(v − Δ²), fedadagrad v ← v + Δ².
As in the paper, fedadagrad has no momentum unless beta1 is given, and it does not use beta2.
Buffers of BatchNorm are averaged and pass no optimiser. With server_lr = 0 the parameters do not change.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedadam", options={"server_lr": 0.01}, rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from undergrowth.core import Context, Method, Packet, Server, State, Task, WeightedMean, option
from undergrowth.core.names import MODEL
from undergrowth.learning import GradientClient, model_mismatch
from undergrowth.learning.servers import has_no_samples, mean_changes, with_mean_buffers


@dataclass(frozen=True)
class AdaptiveServer(Server):
    options: FedOpt
    reducer = WeightedMean()

    def init(self, task: Task, context: Context) -> State:
        state, parameters = super().init(task, context), task.model.parameters
        return {
            **state,
            "mean": {k: torch.zeros_like(state[MODEL][k]) for k in parameters},
            "square": {k: torch.full_like(state[MODEL][k], self.options.tau**2) for k in parameters},
        }

    def check(self, task: Task, up: Packet) -> str | None:
        return model_mismatch(task, up)

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        if has_no_samples(combined):
            return state
        options = self.options
        model, mean, square = state[MODEL], dict(state["mean"]), dict(state["square"])
        updated = {}
        for name, change in mean_changes(task, model, combined).items():
            mean[name] = options.beta1 * mean[name] + (1 - options.beta1) * change
            square[name] = options.next_square(square[name], change.square())
            updated[name] = model[name] + options.server_lr * mean[name] / (square[name].sqrt() + options.tau)
        model = {**with_mean_buffers(task, model, combined), **updated}
        return {**state, MODEL: model, "mean": mean, "square": square}


@dataclass(frozen=True)
class FedOpt(Method):
    """The base of the three methods, which differ in `next_square`."""

    server_lr: float = option(0.01, "step of the server", at_least=0)
    beta1: float = option(0.9, "decay of the mean change", at_least=0, below=1)
    beta2: float = option(0.99, "decay of the mean squared change", at_least=0, below=1)
    tau: float = option(1e-3, "degree of adaptivity: the smaller, the more", above=0, at_most=1e15)

    client = GradientClient()

    @property
    def server(self) -> AdaptiveServer:
        return AdaptiveServer(self)

    def next_square(self, square: Tensor, change: Tensor) -> Tensor:
        """v after a round in which the squared change was `change`."""
        raise NotImplementedError


@dataclass(frozen=True)
class FedAdam(FedOpt):
    """FedAvg with Adam at the server."""

    def next_square(self, square: Tensor, change: Tensor) -> Tensor:
        return self.beta2 * square + (1 - self.beta2) * change


@dataclass(frozen=True)
class FedYogi(FedOpt):
    """FedAvg with Yogi at the server."""

    def next_square(self, square: Tensor, change: Tensor) -> Tensor:
        return square - (1 - self.beta2) * change * torch.sign(square - change)


@dataclass(frozen=True)
class FedAdagrad(FedOpt):
    """FedAvg with Adagrad at the server."""

    beta1: float = option(0.0, "decay of the mean change; 0: no momentum", at_least=0, below=1)

    def next_square(self, square: Tensor, change: Tensor) -> Tensor:
        return square + change
