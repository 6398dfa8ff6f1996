"""Features: what crosses a split of the model, and the part above it as a model of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from undergrowth.core import Model, Output, Task, Weights

EVALUATION_BATCH = 512  # samples in one forward pass when nothing is trained


def features_of(task: Task, weights: Weights, x: Tensor, level: str) -> Tensor:
    """The maps that cross the split for all samples, in evaluation mode and without gradient.

    In evaluation mode the maps of a sample do not hang on the others of its batch, so they can be computed once
    and kept for as long as the weights below the split stay the same.
    """
    with torch.no_grad():
        return torch.cat([task.model.run(weights, some, stop=level).logits for some in x.split(EVALUATION_BATCH)])


class UpperPart(Model):
    """A model whose inputs are the feature maps at `level` of another: only the part above it runs.

    Parameters and buffers are those of the whole model, by the same names.
    """

    def __init__(self, whole: Model, level: str) -> None:
        vars(self).update(vars(whole))
        self._stage(level)  # refuses a level that there is not
        # Every pass goes through the whole model, because that knows in which mode its layers are.
        self._whole = whole
        self._input = level

    def run(
        self,
        weights: Weights,
        x: Tensor,
        *,
        training: str | bool = False,
        maps: Sequence[str] = (),
        start: str | None = None,
        stop: str | None = None,
    ) -> Output:
        return self._whole.run(weights, x, training=training, maps=maps, start=start or self._input, stop=stop)


class LowerPart(Model):
    """A model of which only the part below `level` is trained; the part above it is frozen, in evaluation mode.

    Inputs and outputs are those of the whole model, and so are the names. `inside`: the levels of the part below.
    """

    def __init__(self, whole: Model, level: str) -> None:
        vars(self).update(vars(whole))
        self._whole = whole
        self._split = level
        frozen = set(whole.trainable(level))
        self.parameters = tuple(name for name in whole.parameters if name not in frozen)
        self.inside = tuple(each for each in self.levels if self._stage(each) <= self._stage(level))

    def run(
        self,
        weights: Weights,
        x: Tensor,
        *,
        training: str | bool = False,
        maps: Sequence[str] = (),
        start: str | None = None,
        stop: str | None = None,
    ) -> Output:
        if not training or start or stop:
            return self._whole.run(weights, x, training=training, maps=maps, start=start, stop=stop)
        below = [level for level in maps if level in self.inside]
        lower = self._whole.run(weights, x, training=True, maps=below, stop=self._split)
        crossing = lower.logits.float() if lower.logits.dtype is torch.bfloat16 else lower.logits
        above = [level for level in maps if level not in self.inside]
        upper = self._whole.run(weights, crossing, maps=above, start=self._split)
        return Output(upper.logits, {**lower.maps, **upper.maps}, lower.buffers)
