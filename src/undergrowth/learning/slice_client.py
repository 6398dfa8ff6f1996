"""Slices of a model by width, at the device: options of the methods, and how a device trains a slice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.core import Context, InputError, Output, Packet, Shard, State, Task, Weights, option
from undergrowth.core.client import LoopClient, Steps, Updates
from undergrowth.core.names import HELD, PHASE, Y
from undergrowth.learning.batch_statistics import StatisticsClient, statistics_names
from undergrowth.learning.gradient_client import GradientClient, Trained
from undergrowth.learning.objectives import LossInputs, Objective, TaskLoss
from undergrowth.learning.width import SlicedModel

RATIOS = (1.0, 0.5, 0.25, 0.125, 0.0625)
RATIO, OFFSET = "ratio", "offset"  # scalars of a packet: which slice it holds
# Phases of a round: devices train slices; devices measure the statistics of BatchNorm layers.
TRAINING, STATISTICS = "training", "statistics"


@dataclass(frozen=True, kw_only=True)
class WidthOptions:
    """The options of every method that slices the model by width."""

    ratios: tuple[float, ...] = option(RATIOS, "fractions of the channels that slices have", above=0, at_most=1)
    statistics: bool = option(
        True,
        "devices measure the statistics of BatchNorm layers with the whole model before it is evaluated; "
        "false: the running statistics of slices are averaged",
    )

    def check(self) -> None:
        if not self.ratios or list(self.ratios) != sorted(set(self.ratios), reverse=True):
            raise InputError(f"method.ratios {self.ratios!r} must fall from one to the next, such as (1.0, 0.5, 0.25)")


@dataclass(frozen=True, kw_only=True)
class SliceOptions(WidthOptions):
    """The options of methods in which a device trains one slice."""

    scaler: bool = option(False, "in training, divide the outputs of hidden layers by the slice's part of the channels")
    masked: bool = option(False, "in the loss of a device, the logits of classes that it does not have are 0")

    @property
    def needs_classes(self) -> str:
        return "method.masked leaves out the classes that a device does not have" if self.masked else ""


class ScaledModel(SlicedModel):
    """The same, with the outputs of hidden layers divided by the part of their channels in the slice, in training.

    The layers after them then sum up as much as in the whole model.
    """

    def run(self, weights: Weights, x: Tensor, *, training: str | bool = False, **options: Any) -> Output:
        scaled = weights if training is False else self.widths.scale_up(weights)
        return super().run(scaled, x, training=training, **options)


@dataclass(frozen=True)
class MaskedCrossEntropy(Objective):
    """Mean cross-entropy of the labels, with the logits of classes that the device does not have set to 0."""

    def __call__(self, inputs: LossInputs) -> Tensor:
        logits = inputs.output.logits.masked_fill(~inputs.batch[HELD], 0)
        return inputs.mean(F.cross_entropy(logits, inputs.batch[Y], reduction="none"))


def slice_upload(options: WidthOptions, trained: Trained) -> tuple[Packet, State]:
    """The trained slice with the numbers that identify it: what a client of `WidthServer` sends.

    Without running statistics, if these are measured.
    """
    measured = set(statistics_names(trained.task.model)) if options.statistics else set()
    tensors = {name: value for name, value in trained.tensors.items() if name not in measured}
    which = {name: trained.down.scalars[name] for name in (RATIO, OFFSET)}
    return Packet(tensors, {**trained.scalars, **which}), trained.own


@dataclass(frozen=True, kw_only=True)
class SliceClient(GradientClient):
    """Trains the received slice, a smaller model, and sends it back."""

    options: SliceOptions

    def batches(self, task: Task, down: Packet, steps: Steps, shard: Shard, own: State, context: Context) -> Steps:
        if not self.options.masked:
            return steps
        held = torch.zeros(task.classes, dtype=torch.bool, device=shard.y.device).index_fill(0, shard.y, True)
        return replace(steps, data={**steps.data, HELD: held.expand(len(shard), -1)})

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        return slice_upload(self.options, trained)


@dataclass(frozen=True)
class WidthClient(Updates):
    """Trains, or measures the statistics of BatchNorm layers: the phase in the packet's tag decides."""

    training: LoopClient
    measuring: StatisticsClient = StatisticsClient()

    def updates(self, task: Task, down: Packet) -> Mapping[str, LoopClient]:
        return {STATISTICS: self.measuring} if down.tags.get(PHASE) == STATISTICS else {TRAINING: self.training}


def build_slice_client(options: SliceOptions) -> WidthClient:
    """The client of a method in which a device trains one slice."""
    objective = MaskedCrossEntropy() if options.masked else TaskLoss()
    return WidthClient(SliceClient(objective, view=ScaledModel if options.scaler else SlicedModel, options=options))
