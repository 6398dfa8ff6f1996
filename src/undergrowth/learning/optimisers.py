"""Optimisers as pure functions of parameters, gradients and state, and learning-rate schedules over rounds.

The arithmetic is that of `torch.optim`, operation by operation, so that a federation of one device gives the
bits of ordinary training; large linear layers under plain SGD (`descent`) give them but for the last ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from undergrowth.core import InputError, Train, nearest

OptimiserState = dict[str, Any]
Tensors = list[Tensor] | tuple[Tensor, ...]


class Optimiser(Protocol):
    def init(self, parameters: Tensors) -> OptimiserState: ...

    def update(
        self, parameters: Tensors, gradients: Tensors, state: OptimiserState, lr: float, reuse: bool = False
    ) -> tuple[Tensors, OptimiserState]:
        """New parameters and state. With `reuse` they may take the memory of the old ones."""
        ...


@dataclass(frozen=True)
class Sgd:
    momentum: float = 0.0
    weight_decay: float = 0.0

    def init(self, parameters: Tensors) -> OptimiserState:
        return {"velocity": [torch.zeros_like(p) for p in parameters]} if self.momentum else {}

    def update(
        self, parameters: Tensors, gradients: Tensors, state: OptimiserState, lr: float, reuse: bool = False
    ) -> tuple[Tensors, OptimiserState]:
        if self.weight_decay:
            gradients = torch._foreach_add(gradients, parameters, alpha=self.weight_decay)
        if self.momentum and reuse:
            torch._foreach_mul_(state["velocity"], self.momentum)
            torch._foreach_add_(state["velocity"], gradients)
            gradients = state["velocity"]
        elif self.momentum:
            gradients = torch._foreach_add(torch._foreach_mul(state["velocity"], self.momentum), gradients)
            state = {"velocity": gradients}
        if reuse:  # fresh memory in every step would be cold, and the system would have to clear it first
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
        return {"step": 0, "mean": zeros, "square": zeros}

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
        torch._foreach_div_(scale, math.sqrt(1 - self.beta2**step))
        torch._foreach_add_(scale, self.epsilon)
        moved = torch._foreach_addcdiv(parameters, mean, scale, value=-lr / (1 - self.beta1**step))
        return moved, {"step": step, "mean": mean, "square": square}


def optimiser_of(train: Train) -> Optimiser:
    """The optimiser that the run's settings name."""
    if train.optimiser == "sgd":
        return Sgd(train.momentum, train.weight_decay)
    if train.optimiser in ("adam", "adamw"):
        return Adam(weight_decay=train.weight_decay, decoupled=train.optimiser == "adamw")
    raise InputError(
        f"train.optimiser '{train.optimiser}' is not known; {nearest(train.optimiser, ('sgd', 'adam', 'adamw'))}"
    )


def learning_rate(train: Train, round: int) -> float:
    """The rate of a round under the run's schedule: constant, linear, cosine, or step:EVERY:FACTOR."""
    kind, *arguments = train.schedule.split(":")
    progress = min(round / train.rounds, 1.0)
    if kind == "constant" and not arguments:
        return train.lr
    if kind == "linear" and not arguments:
        return train.lr * (1 - progress)
    if kind == "cosine" and not arguments:
        return train.lr * (1 + math.cos(math.pi * progress)) / 2
    if kind == "step" and len(arguments) == 2:
        try:
            every, factor = int(arguments[0]), float(arguments[1])
        except ValueError:
            every, factor = 0, 0.0
        if every > 0 and 0 < factor <= 1:
            return train.lr * factor ** (round // every)
    raise InputError(
        f"train.schedule '{train.schedule}' is not known; write constant, linear, cosine or step:EVERY:FACTOR "
        "(such as step:10:0.5)"
    )
