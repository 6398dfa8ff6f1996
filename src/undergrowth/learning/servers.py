"""Servers that average models, and those that treat the average change as a gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from undergrowth.core import Context, Packet, Reducer, Server, State, Task, WeightedMean


@dataclass(frozen=True)
class Averaging(Server):
    """w ← w + lr·(mean of the uploaded models − w). With lr = 1 the mean itself, bit for bit."""

    lr: float = 1.0
    reducer: Reducer = WeightedMean()
    accepts_partial: bool = False

    def check(self, task: Task, up: Packet) -> str | None:
        return unlike_model(task, up)

    def step(self, task: Task, state: State, total: Packet, context: Context) -> State:
        if weightless(total):
            return state
        old = state["model"]
        mean = {name: value.to(old[name].dtype) for name, value in total.tensors.items()}
        moved = {
            # lerp with weight 1 is exactly its end, which `old + (mean - old)` is not.
            name: torch.lerp(old[name], value, self.lr) if name in task.model.parameters else value
            for name, value in mean.items()
        }
        return {**state, "model": {**old, **moved}}


@dataclass(frozen=True)
class Momentum(Server):
    """FedAvgM: v ← β·v + Δ, w ← w + lr·v, with Δ the mean change of the uploaded models."""

    lr: float = 1.0
    momentum: float = 0.9
    reducer: Reducer = WeightedMean()

    def init(self, task: Task, context: Context) -> State:
        model = task.model.initial(context.key("model"))
        return {"model": model, "velocity": {k: torch.zeros_like(model[k]) for k in task.model.parameters}}

    def check(self, task: Task, up: Packet) -> str | None:
        return unlike_model(task, up)

    def step(self, task: Task, state: State, total: Packet, context: Context) -> State:
        if weightless(total):
            return state
        model, velocity = state["model"], dict(state["velocity"])
        for name, change in changes(task, model, total).items():
            velocity[name] = velocity[name] * self.momentum + change
        moved = {name: model[name] + self.lr * velocity[name] for name in velocity}
        return {**state, "model": {**with_buffers(task, model, total), **moved}, "velocity": velocity}


@dataclass(frozen=True)
class Adaptive(Server):
    """FedAdam, FedYogi and FedAdagrad (Reddi et al. 2021): w ← w + lr·m / (√v + τ).

    m ← β1·m + (1 − β1)·Δ for all three; v, which starts at τ², grows by the rule:
    adam v ← β2·v + (1 − β2)·Δ²; yogi v ← v − (1 − β2)·Δ²·sign(v − Δ²); adagrad v ← v + Δ².
    """

    rule: str
    lr: float
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    reducer: Reducer = WeightedMean()

    def init(self, task: Task, context: Context) -> State:
        model = task.model.initial(context.key("model"))
        return {
            "model": model,
            "mean": {k: torch.zeros_like(model[k]) for k in task.model.parameters},
            "square": {k: torch.full_like(model[k], self.tau**2) for k in task.model.parameters},
        }

    def check(self, task: Task, up: Packet) -> str | None:
        return unlike_model(task, up)

    def step(self, task: Task, state: State, total: Packet, context: Context) -> State:
        if weightless(total):
            return state
        model, mean, square = state["model"], dict(state["mean"]), dict(state["square"])
        moved = {}
        for name, change in changes(task, model, total).items():
            mean[name] = self.beta1 * mean[name] + (1 - self.beta1) * change
            square[name] = self._grown(square[name], change.square())
            moved[name] = model[name] + self.lr * mean[name] / (square[name].sqrt() + self.tau)
        model = {**with_buffers(task, model, total), **moved}
        return {**state, "model": model, "mean": mean, "square": square}

    def _grown(self, square: Tensor, change: Tensor) -> Tensor:
        if self.rule == "adam":
            return self.beta2 * square + (1 - self.beta2) * change
        if self.rule == "yogi":
            return square - (1 - self.beta2) * change * torch.sign(square - change)
        return square + change


def weightless(total: Packet) -> bool:
    """Whether nobody who answered had a sample: there is no mean then, and the model stays as it is."""
    return total.scalars.get("samples") == 0


def unlike_model(task: Task, up: Packet) -> str | None:
    """Says which tensor of an upload is not one of the model's, or has another shape."""
    if not up.tensors:
        return "it holds no tensor"
    for name, value in up.tensors.items():
        shape = task.model.shapes.get(name)
        if shape is None:
            return f"'{name}' is not a tensor of the model"
        if value.shape != shape:
            return f"'{name}' has shape {tuple(value.shape)} and the model's is {tuple(shape)}"
    return None


def changes(task: Task, model: dict[str, Tensor], total: Packet) -> dict[str, Tensor]:
    """Mean uploaded parameters minus the model's."""
    parameters = set(task.model.parameters)
    return {k: v.to(model[k].dtype) - model[k] for k, v in total.tensors.items() if k in parameters}


def with_buffers(task: Task, model: dict[str, Tensor], total: Packet) -> dict[str, Tensor]:
    """The model with the averaged buffers: statistics are averaged, never passed through an optimiser."""
    found = {name: total.tensors[name] for name in task.model.buffers if name in total.tensors}
    return {**model, **{name: value.to(model[name].dtype) for name, value in found.items()}}
