"""Statistics of BatchNorm layers, measured on the samples of devices instead of averaged over their models.

The running statistics of a model that was averaged over slices of different width fit none of its layers: a narrow
slice sums over fewer inputs. They are measured instead (static BatchNorm, Diao et al. 2021): devices run the averaged
model forward once, and send the mean and the variance of the inputs of every BatchNorm layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from undergrowth.core import AllSelector, Context, Model, Packet, Shard, State, Task
from undergrowth.core.client import Batch, Carry, LoopClient, Steps
from undergrowth.core.names import FINISH, LOSS, RECEIVED, SAMPLES, WEIGHT, X, Y
from undergrowth.core.reducers import Reducer
from undergrowth.learning.gradient_client import shuffled_steps, without_small_batches

MEAN, VARIANCE = "running_mean", "running_var"
Moments = tuple[Tensor, Tensor]  # mean and variance of each channel


def statistics_names(model: Model) -> tuple[str, ...]:
    """Names of the running statistics of a model's BatchNorm layers: a mean and a variance for each layer."""
    return tuple(f"{layer}.{each}" for layer in _layers(model) for each in (MEAN, VARIANCE))


def pool_moments(first: Moments, second: Moments, fraction: float | Tensor) -> Moments:
    """Mean and variance of two sets of values together. `fraction`: how many of all values are in the second set.

    The variance is the mean of the two variances plus the variance of the two means.
    """
    difference = second[0] - first[0]
    variance = first[1] + fraction * (second[1] - first[1]) + fraction * (1 - fraction) * difference.square()
    return first[0] + fraction * difference, variance


@dataclass(frozen=True)
class MomentsReducer(Reducer):
    """Mean and variance over the samples of all devices, exactly those of one set with the samples of all."""

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        return Packet(up.tensors, {SAMPLES: up.scalars[SAMPLES]})

    def merge(self, a: Packet, b: Packet) -> Packet:
        samples = a.scalars[SAMPLES] + b.scalars[SAMPLES]
        fraction = b.scalars[SAMPLES] / samples if samples else 0.0
        tensors: dict[str, Tensor] = {}
        for mean in (name for name in a.tensors if name.endswith(MEAN)):
            names = mean, mean.removesuffix(MEAN) + VARIANCE
            first, second = ((packet.tensors[names[0]], packet.tensors[names[1]]) for packet in (a, b))
            tensors.update(zip(names, pool_moments(first, second, fraction), strict=True))
        return Packet(tensors, {SAMPLES: samples})


@dataclass(frozen=True)
class StatisticsClient(LoopClient):
    """Sends mean and variance of the inputs of every BatchNorm layer over the device's samples, with their number.

    The received model runs forward, without gradients, in evaluation mode, on batches of the run's size in random
    order. It has no running statistics, so its BatchNorm layers normalise by the batch, as in training. The run's
    selector and augmentation are not used. A last batch that is too small to normalise by is left out.
    """

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        generator = context.generator("order")
        shuffled = shuffled_steps(task, down.tensors, shard, AllSelector(), 1, task.train.batch, generator)
        steps = without_small_batches(shuffled, task.model.smallest_batch(), drop_last=False)
        weights = down.tensors
        zeros = {name: torch.zeros_like(weights[name]) for name in statistics_names(task.model)}
        seen = next(iter(zeros.values())).new_zeros(())
        finish = {SAMPLES: float(sum(len(order) for order in steps.epochs))}
        carry: Carry = {RECEIVED: weights, "measured": zeros, "seen": seen, FINISH: finish}
        if task.sampler.needs_loss:
            carry[LOSS] = torch.zeros_like(seen)
        return carry, steps

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        seen, count = carry["seen"], len(batch[X])
        # A batch of several clients has the weight of every sample, 0 for padding; `seen` has one value per client.
        weight = batch[WEIGHT] if WEIGHT in batch else seen.new_full((count,), 1 / count)
        samples = (weight > 0).reshape(*seen.shape, -1).sum(-1)
        fraction = samples / (seen + samples).clamp_min(1)

        def mean(values: Tensor) -> Tensor:
            return (values * weight[:, None]).reshape(*seen.shape, -1, values.shape[1]).sum(-2)

        measured = dict(carry["measured"])

        def measure(layer: str, x: Tensor) -> None:
            variances, means = torch.var_mean(x.flatten(2) if x.dim() > 2 else x[..., None], 2, correction=0)
            names = f"{layer}.{MEAN}", f"{layer}.{VARIANCE}"
            before = measured[names[0]], measured[names[1]]
            batch_mean = mean(means)
            # The mean of squares minus the square of the mean would lose digits where the mean is large.
            spread = (means - _each_sample(batch_mean, count)).square()
            now = batch_mean, mean(variances + spread)
            measured.update(zip(names, pool_moments(before, now, fraction[..., None]), strict=True))

        without: dict[str, Any] = {**carry[RECEIVED], **dict.fromkeys(measured)}
        with torch.no_grad(), _record_inputs(task.model, measure):
            logits = task.model.run(without, batch[X]).logits
        carry = {**carry, "measured": measured, "seen": seen + samples}
        if LOSS in carry:
            losses = task.kind.losses(logits, batch[Y]).means
            carry[LOSS] = carry[LOSS] + samples * mean(losses[:, None])[..., 0]
        return carry

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        scalars = dict(carry[FINISH])
        if LOSS in carry:
            scalars[LOSS] = float(carry[LOSS] / carry["seen"].clamp_min(1))
        return Packet(carry["measured"], scalars), own


def _layers(model: Model) -> dict[str, nn.Module]:
    """The BatchNorm layers that have running statistics, by name."""
    return {
        name: layer
        for name, layer in model.module.named_modules()
        if isinstance(layer, _BatchNorm) and f"{name}.{MEAN}" in model.shapes
    }


def _each_sample(values: Tensor, count: int) -> Tensor:
    """The values of each client, if there are several, repeated for its part of a batch of `count` samples."""
    if values.dim() == 1:
        return values
    return values.repeat_interleave(count // len(values), 0)


@contextmanager
def _record_inputs(model: Model, record: Any) -> Iterator[None]:
    """Calls `record(name, input)` for every BatchNorm layer that runs in this block."""

    def hook(name: str, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        record(name, inputs[0])

    hooks = [layer.register_forward_pre_hook(partial(hook, name)) for name, layer in _layers(model).items()]
    try:
        yield
    finally:
        for each in hooks:
            each.remove()
