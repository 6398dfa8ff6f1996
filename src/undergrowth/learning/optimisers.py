"""Optimisers as pure functions of parameters, gradients and state, and learning-rate schedules over rounds.

The arithmetic is that of `torch.optim`, operation by operation, so that a federation of one device gives the same bits
as ordinary training. Large linear layers under plain SGD (see `descent`) differ in the last bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from undergrowth.core import InputError, Train, suggest
from undergrowth.core.notation import Form, Number, parse

OptimiserState = dict[str, Any]
Tensors = list[Tensor] | tuple[Tensor, ...]


class Optimiser(Protocol):
    """Steps of parameters against their gradients. What changes is in the state, which the caller keeps."""

    def init(self, parameters: Tensors) -> OptimiserState: ...

    def update(
        self, parameters: Tensors, gradients: Tensors, state: OptimiserState, lr: float, reuse: bool = False
    ) -> tuple[Tensors, OptimiserState]:
        """New parameters and state. `reuse`: they may overwrite the memory of the old ones."""
        ...


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent, plain or with momentum."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    dampening: float = 0.0  # of the gradients that are added to the velocity; the first one is not dampened

    def init(self, parameters: Tensors) -> OptimiserState:
        if not self.momentum:
            return {}
        state: OptimiserState = {"velocity": [torch.zeros_like(p) for p in parameters]}
        # A tensor, because the steps of a stack are recorded, and a recording changes only tensors.
        return {**state, "moving": torch.zeros_like(parameters[0].flatten()[0])} if self.dampening else state

    def update(
        self, parameters: Tensors, gradients: Tensors, state: OptimiserState, lr: float, reuse: bool = False
    ) -> tuple[Tensors, OptimiserState]:
        if self.weight_decay:
            gradients = torch._foreach_add(gradients, parameters, alpha=self.weight_decay)
        if self.momentum:
            velocity = state["velocity"]
            if reuse:
                torch._foreach_mul_(velocity, self.momentum)
            else:
                velocity = torch._foreach_mul(velocity, self.momentum)
            torch._foreach_add_(velocity, gradients, alpha=1 - self.dampening)
            if self.dampening:
                moving = _for_each(parameters, state["moving"])
                velocity = [torch.where(m > 0, v, g) for m, v, g in zip(moving, velocity, gradients, strict=True)]
                state = {**state, "moving": torch.ones_like(state["moving"])}
            gradients = velocity
            state = {**state, "velocity": velocity}
        if reuse:  # new memory in every step would not be in the cache, and the system would clear it first
            torch._foreach_add_(parameters, gradients, alpha=-lr)
            return parameters, state
        return torch._foreach_add(parameters, gradients, alpha=-lr), state


@dataclass(frozen=True)
class Adam:
    """Adam; with `decoupled`, AdamW: the weight decay acts on the parameters, not on the gradients."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    def init(self, parameters: Tensors) -> OptimiserState:
        zeros = [torch.zeros_like(p) for p in parameters]
        # A tensor, because the steps of a stack are recorded, and a recording changes only tensors.
        step = torch.zeros((), dtype=torch.float64, device=parameters[0].device)
        return {"step": step, "mean": zeros, "square": zeros}

    def update(
        self, parameters: Tensors, gradients: Tensors, state: OptimiserState, lr: float, reuse: bool = False
    ) -> tuple[Tensors, OptimiserState]:
        step = state["step"] + 1
        if self.weight_decay and self.decoupled:
            parameters = torch._foreach_mul(parameters, 1 - lr * self.weight_decay)
        elif self.weight_decay:
            gradients = torch._foreach_add(gradients, parameters, alpha=self.weight_decay)
        mean = torch._foreach_lerp(state["mean"], gradients, 1 - self.beta1)
        square = torch._foreach_mul(state["square"], self.beta2)
        square = torch._foreach_addcmul(square, gradients, gradients, value=1 - self.beta2)
        scale = torch._foreach_sqrt(square)
        torch._foreach_div_(scale, _for_each(parameters, (1 - self.beta2**step).sqrt()))
        torch._foreach_add_(scale, self.epsilon)
        change = torch._foreach_mul(mean, _for_each(parameters, -lr / (1 - self.beta1**step)))
        torch._foreach_div_(change, scale)
        return torch._foreach_add(parameters, change), {"step": step, "mean": mean, "square": square}


def _for_each(parameters: Tensors, value: Tensor) -> list[Tensor]:
    """`value`, a number or one per client of a stack, with as many dimensions as each parameter of one dtype."""
    value = value.to(parameters[0].dtype)
    if not value.dim():
        return [value] * len(parameters)
    shapes = {p.dim(): value.reshape(-1, *[1] * (p.dim() - 1)) for p in parameters}
    return [shapes[p.dim()] for p in parameters]


def build_optimiser(train: Train) -> Optimiser:
    """The optimiser that `train.optimiser` names."""
    if train.optimiser == "sgd":
        return Sgd(train.momentum, train.weight_decay)
    if train.optimiser in ("adam", "adamw"):
        return Adam(weight_decay=train.weight_decay, decoupled=train.optimiser == "adamw")
    raise InputError(
        f"train.optimiser '{train.optimiser}' is not known; {suggest(train.optimiser, ('sgd', 'adam', 'adamw'))}"
    )


def require_sgd(optimiser: Optimiser) -> Sgd:
    """`optimiser`, if it is SGD. Raises `InputError` otherwise."""
    if isinstance(optimiser, Sgd):
        return optimiser
    name = "adamw" if getattr(optimiser, "decoupled", False) else type(optimiser).__name__.lower()
    raise InputError(f"train.optimiser '{name}': this method needs sgd, whose steps are sums of gradients")


def sum_of_weights(optimiser: Optimiser, steps: int) -> float:
    """Σ a_j, if `steps` steps of SGD change the parameters by −lr·Σ a_j·g_j, where g_j is the gradient of step j.

    Without momentum every a_j is 1. With momentum m, a_j = 1 + m + m² + … over the steps from j to the last; with
    dampening d, all but the first are multiplied by 1 − d.
    """
    sgd = require_sgd(optimiser)
    m, d = sgd.momentum, sgd.dampening if sgd.momentum else 0.0
    total, first = (steps - m * (1 - m**steps) / (1 - m)) / (1 - m), (1 - m**steps) / (1 - m)
    return total - d * (total - first)


SCHEDULES = {
    "constant": Form(),
    "linear": Form(),
    "cosine": Form(),
    "step": Form(
        (Number("EVERY", at_least=1, whole=True), Number("FACTOR", above=0, at_most=1)), example="step:10:0.5"
    ),
}


def learning_rate(train: Train, round: int) -> float:
    """The learning rate of a round under `train.schedule`: constant, linear, cosine or step:EVERY:FACTOR."""
    kind, numbers = _parse_schedule(train.schedule)
    progress = min(round / train.rounds, 1.0)
    if kind == "linear":
        return train.lr * (1 - progress)
    if kind == "cosine":
        return train.lr * (1 + math.cos(math.pi * progress)) / 2
    if kind == "step":
        every, factor = numbers
        return train.lr * factor ** (round // int(every))
    return train.lr


@cache
def _parse_schedule(text: str) -> tuple[str, list[float]]:
    return parse("train.schedule", text, SCHEDULES)
