"""NodeOptimiser: how a node merges the models that it receives into its own (NODEOPT)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from undergrowth.core import Shard, State, Task, Weights
from undergrowth.core.notation import Form, Number, parse
from undergrowth.learning.servers import mean_of_models
from undergrowth.methods.fedopt import FedAdagrad, FedAdam, FedOpt, FedYogi

ADAPTIVE: Mapping[str, FedOpt] = {"fedadam": FedAdam(), "fedyogi": FedYogi(), "fedadagrad": FedAdagrad()}
FORMS = {
    "average": Form(),
    "momentum": Form((Number("BETA", at_least=0, at_most=0.999999, default=0.9),), "momentum:0.9"),
    **dict.fromkeys(ADAPTIVE, Form()),
    "moving-average": Form((Number("MODELS", at_least=1, whole=True, default=5),), "moving-average:5"),
    "interpolation": Form((Number("RATE", at_least=0, default=0.1),), "interpolation:0.1"),
    "distance": Form((Number("FACTOR", above=0, at_most=1, default=0.5),), "distance:0.5"),
}
MIXTURE_SAMPLES = 512  # at most as many samples decide about the weight of a mixture
MIXTURE = 0.5  # its value at the start


@dataclass(frozen=True)
class ReceivedModel:
    """A model that a node receives: its weights, the samples behind it, and the links that it came over."""

    weights: Weights
    samples: float = 1.0
    hops: float = 1.0


@dataclass(frozen=True)
class NodeOptimiser:
    """Moves a model towards received ones, and towards the mean of the residuals with `residual_weight`.

    `downward`: statistics of BatchNorm move like the parameters, because the node has seen other data than its parent.
    Upward, they become those of the children. They pass no optimiser in either direction.
    """

    text: str
    rate: float
    residual_weight: float
    downward: bool = False

    def merge(
        self,
        task: Task,
        model: Weights,
        received: ReceivedModel,
        residuals: Sequence[ReceivedModel],
        memory: State,
        data: Shard | None = None,
        discount: float = 1.0,
    ) -> tuple[dict[str, Tensor], State]:
        """The model and the optimiser's memory after one merge. With a rate of 0 both stay as they are.

        `data` are the samples of the node, for `interpolation`; `discount` reduces the rate for stale models.
        """
        rate = self.rate * discount
        if not rate:
            return dict(model), memory
        kind, numbers = self._parsed
        names = [name for name in task.model.parameters if name in received.weights]
        mine = {name: model[name] for name in names}
        if kind == "distance":
            inputs = [ReceivedModel(each.weights, each.samples * numbers[0] ** (each.hops - 1)) for each in residuals]
            target = mean_of([received, *inputs])
        else:
            target = self._mix(received.weights, mean_of(residuals) if residuals else None, names)
        if kind in ADAPTIVE or kind == "momentum":
            steps, memory = self._steps(mine, received, residuals, memory)
            moved = {name: value + rate * steps[name] for name, value in mine.items()}
        elif kind == "interpolation":
            assert data is not None
            mixture = tune_mixture(task, model, {name: target[name] for name in names}, memory, data, numbers[0])
            moved = {
                name: torch.lerp(value, _like(target[name], value), rate * mixture) for name, value in mine.items()
            }
            memory = {"mixture": mixture}
        else:
            # lerp with weight 1 is exactly its end, which `value + (target - value)` is not.
            moved = {name: torch.lerp(value, _like(target[name], value), rate) for name, value in mine.items()}
        if kind == "moving-average":
            window = [*memory.get("window", ()), moved][-int(numbers[0]) :]
            moved = {name: torch.stack([each[name] for each in window]).mean(0) for name in names}
            memory = {"window": window}
        return {**model, **self._statistics(task, model, received.weights, rate), **moved}, memory

    @property
    def needs_data(self) -> bool:
        """Whether the node must have samples."""
        return self._parsed[0] == "interpolation"

    def check(self, field: str) -> None:
        """Raise an InputError if the text of option `field` cannot be read."""
        parse(f"method.{field}", self.text, FORMS)

    @cached_property
    def _parsed(self) -> tuple[str, list[float]]:
        return parse("method.up or method.down", self.text, FORMS)

    def _mix(self, main: Weights, second: Weights | None, names: Sequence[str]) -> Weights:
        if second is None:
            return main
        weight = self.residual_weight
        return {name: torch.lerp(main[name], _like(second[name], main[name]), weight) for name in names}

    def _steps(
        self, mine: Weights, received: ReceivedModel, residuals: Sequence[ReceivedModel], memory: State
    ) -> tuple[Weights, State]:
        """The steps at rate 1. Residuals have their own accumulators."""
        steps, kept = self._one_step(mine, received.weights, memory.get("received", {}))
        memory = {**memory, "received": kept}
        if not residuals:
            return steps, memory
        second, kept = self._one_step(mine, mean_of(residuals), memory.get("residuals", {}))
        return self._mix(steps, second, list(mine)), {**memory, "residuals": kept}

    def _one_step(self, mine: Weights, target: Weights, memory: State) -> tuple[Weights, State]:
        """m and v as in the method of that name; `momentum`: m ← BETA·m + Δ."""
        kind, numbers = self._parsed
        changes = {name: _like(target[name], value) - value for name, value in mine.items()}
        mean = memory.get("mean") or {name: torch.zeros_like(value) for name, value in mine.items()}
        if kind == "momentum":
            mean = {name: numbers[0] * mean[name] + change for name, change in changes.items()}
            return mean, {"mean": mean}
        options = ADAPTIVE[kind]
        square = memory.get("square") or {name: torch.full_like(value, options.tau**2) for name, value in mine.items()}
        mean = {name: options.beta1 * mean[name] + (1 - options.beta1) * change for name, change in changes.items()}
        square = {name: options.next_square(square[name], change.square()) for name, change in changes.items()}
        steps = {name: value / (square[name].sqrt() + options.tau) for name, value in mean.items()}
        return steps, {"mean": mean, "square": square}

    def _statistics(self, task: Task, model: Weights, received: Weights, rate: float) -> dict[str, Tensor]:
        rate = min(rate, 1.0) if self.downward else 1.0
        moved = {}
        for name in task.model.buffers:
            if name in received:
                mine, value = model[name], received[name]
                if value.is_floating_point():
                    moved[name] = torch.lerp(mine, _like(value, mine), rate)
                else:  # a counter
                    moved[name] = value if rate == 1 else torch.maximum(mine, value)
        return moved


def tune_mixture(task: Task, model: Weights, target: Weights, memory: State, data: Shard, rate: float) -> Tensor:
    """The weight α of `target` after one step of gradient descent on the loss of model + α·(target − model) on `data`.

    As in APFL (Deng et al. 2020), eq. 10: the derivative of the loss with respect to α. α stays between 0 and 1.
    """
    like = next(iter(target.values()))
    before = memory.get("mixture")
    before = torch.full((), MIXTURE, dtype=like.dtype, device=like.device) if before is None else before
    with torch.enable_grad():
        alpha = before.detach().requires_grad_()
        mixed = {name: torch.lerp(model[name], _like(value, model[name]), alpha) for name, value in target.items()}
        outputs = task.model({**model, **mixed}, data.x[:MIXTURE_SAMPLES])
        losses, counts = task.kind.losses(outputs, data.y[:MIXTURE_SAMPLES])
        loss = losses.mean() if counts is None else losses.sum() / counts.sum().clamp_min(1)
        (slope,) = torch.autograd.grad(loss, alpha)
    return (before - rate * slope).clamp(0, 1)


def mean_of(inputs: Sequence[ReceivedModel]) -> Weights:
    """The mean of several models, weighed by their samples."""
    if len(inputs) == 1:
        return inputs[0].weights
    mean = mean_of_models((each.weights, each.samples) for each in inputs)
    assert mean is not None
    return mean.tensors


def _like(value: Tensor, other: Tensor) -> Tensor:
    return value.to(other.dtype)
