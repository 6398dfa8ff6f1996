"""FedDyn (Acar et al. 2021): a dynamic regulariser whose sum vanishes at an optimum of the whole federation.

Every device k keeps q_k, its local gradient at the model that it sent last, and the server keeps h; both start at 0.
Down: w. A device minimises its loss − ⟨q_k, w_k⟩ + (alpha/2)·‖w_k − w‖² with E epochs of SGD, then
q_k ← q_k − alpha·(w_k − w). Up: w_k. Server: h ← h − alpha·|S|/N·mean(w_k − w) and w ← mean(w_k) − h / alpha, over the
devices S that answered, of N in all. Only models travel: the bytes are those of FedAvg.

As in the paper, devices have equal weight in the mean, whatever their number of samples.

Departures: the paper assumes that devices minimise exactly; E epochs only come near. Buffers of BatchNorm are averaged.
Devices store −q_k.

    >>> import undergrowth as ug
    >>> result = ug.run(method="feddyn", options={"alpha": 0.1}, rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from undergrowth.core import Context, Method, Packet, Server, State, Task, WeightedMean, Weights, option
from undergrowth.core.names import MODEL
from undergrowth.learning import GradientClient, Linear, Proximal, TaskLoss, Trained, model_mismatch, with_slope
from undergrowth.learning.servers import mean_changes, with_mean_buffers


@dataclass(frozen=True, kw_only=True)
class FedDynClient(GradientClient):
    """Trains with −q_k as the slope of the loss. own: `slope` is −q_k."""

    options: FedDyn

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        slope = own.get("slope") or {name: torch.zeros_like(down.tensors[name]) for name in task.model.parameters}
        return with_slope(down.tensors, slope)

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        alpha, received = self.options.alpha, trained.received
        slope = {
            name: received[f"slope/{name}"] + alpha * (trained.tensors[name] - received[name])
            for name in trained.task.model.parameters
        }
        return trained.packet, {"slope": slope}


@dataclass(frozen=True)
class FedDynServer(Server):
    """state: `h` is the sum of the changes that devices made, times −alpha/N."""

    options: FedDyn
    reducer = WeightedMean(None)

    def init(self, task: Task, context: Context) -> State:
        state = super().init(task, context)
        return {**state, "h": {name: torch.zeros_like(state[MODEL][name]) for name in task.model.parameters}}

    def check(self, task: Task, up: Packet) -> str | None:
        return model_mismatch(task, up)

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        alpha, fraction = self.options.alpha, combined.scalars["uploads"] / context.devices
        model, h = with_mean_buffers(task, state[MODEL], combined), dict(state["h"])
        for name, change in mean_changes(task, state[MODEL], combined).items():
            h[name] = h[name] - alpha * fraction * change
            model[name] = model[name] + change - h[name] / alpha
        return {**state, MODEL: model, "h": h}


@dataclass(frozen=True)
class FedDyn(Method):
    alpha: float = option(0.01, "strength of the regulariser", above=0)

    @property
    def client(self) -> FedDynClient:
        return FedDynClient(TaskLoss() + Linear() + Proximal(self.alpha), options=self)

    @property
    def server(self) -> FedDynServer:
        return FedDynServer(self)
