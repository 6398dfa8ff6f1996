"""Features: evaluation of a whole data set, and parts of a model used as models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from undergrowth.core import Model, Output, Steps, Task, Weights
from undergrowth.core.names import AUGMENT, X

EVALUATION_BATCH = 512  # samples in one forward pass without training


def logits_of(task: Task, weights: Weights, x: Tensor) -> Tensor:
    """The model's logits for all inputs, in evaluation mode and without gradients."""
    with torch.no_grad():
        return torch.cat([task.model(weights, batch) for batch in x.split(EVALUATION_BATCH)])


def features_of(task: Task, weights: Weights, x: Tensor, level: str) -> Tensor:
    """The feature maps of all samples at `level`, in evaluation mode and without gradients.

    In evaluation mode they do not depend on the other samples of a batch, so they can be computed once and kept until
    the weights below `level` change.
    """
    with torch.no_grad():
        return torch.cat([task.model.run(weights, batch, stop=level).logits for batch in x.split(EVALUATION_BATCH)])


def attention_map(features: Tensor) -> Tensor:
    """Σ over channels of f²: samples × channels × height × width → samples × height × width."""
    return features.square().sum(1)


def augmented_inputs(task: Task, steps: Steps, epoch: int) -> Iterator[Tensor]:
    """The augmented inputs of an epoch in the order of their visits, `EVALUATION_BATCH` samples at a time."""
    assert task.augmentation is not None
    x = steps.data[X]
    orders, draws = (each[epoch].split(EVALUATION_BATCH) for each in (steps.epochs, steps.visits[AUGMENT]))
    for rows, choices in zip(orders, draws, strict=True):
        yield task.augmentation.apply(x[rows.to(x.device)], choices.to(x.device))


class ModelView(Model):
    """Another way to run a model. It shares the module of `whole`, and the names of its parameters and buffers.

    Views of one model are equal if they run it in the same way.
    """

    whole: Model

    def __init__(self, whole: Model) -> None:
        super().__init__(whole.build, whole.torch_device, whole.mixed, whole.not_alone, whole.binding)
        vars(self)["whole"] = whole

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), self.whole))


class UpperModel(ModelView):
    """The part of a model above `level`: its inputs are feature maps at that level."""

    level: str

    def __init__(self, whole: Model, level: str) -> None:
        super().__init__(whole)
        self.check_split(level)
        vars(self)["level"] = level

    def with_precision(self, mixed: bool) -> UpperModel:
        return UpperModel(self.whole.with_precision(mixed), self.level)

    def run(self, weights: Weights, x: Tensor, *, start: str | None = None, **options: Any) -> Output:
        return self.whole.run(weights, x, start=start or self.level, **options)


class LowerModel(ModelView):
    """A model of which only the part below `level` is trained; the parameters above are frozen.

    Inputs and outputs are those of the whole model. `inside`: the levels of the part below.
    statistics: "kept": the part above runs in evaluation mode; "updated": in training mode, so BatchNorm normalises by
    the batch, and its statistics follow.
    """

    level: str
    inside: tuple[str, ...]
    statistics: str

    def __init__(self, whole: Model, level: str, statistics: str = "kept") -> None:
        super().__init__(whole)
        self.check_split(level)
        frozen = set(whole.trainable(level))
        vars(self).update(
            level=level,
            statistics=statistics,
            parameters=tuple(name for name in whole.parameters if name not in frozen),
            inside=tuple(each for each in self.levels if self.position(each) <= self.position(level)),
        )

    def with_precision(self, mixed: bool) -> LowerModel:
        return LowerModel(self.whole.with_precision(mixed), self.level, self.statistics)

    def run(
        self,
        weights: Weights,
        x: Tensor,
        *,
        training: str | bool = False,
        maps: Sequence[str] = (),
        keys: Tensor | None = None,
        **part: Any,
    ) -> Output:
        if not training or self.statistics == "updated" or any(part.values()):  # `start` or `stop`
            return self.whole.run(weights, x, training=training, maps=maps, keys=keys, **part)
        below = [level for level in maps if level in self.inside]
        lower = self.whole.run(weights, x, training=True, maps=below, stop=self.level, keys=keys)
        above = [level for level in maps if level not in self.inside]
        with self.in_precision(x.device.type):  # this pass is one of training, too: gradients come through it
            upper = self.whole.run(weights, lower.logits, maps=above, start=self.level)
        return Output(upper.logits, {**lower.maps, **upper.maps}, lower.buffers)
