"""The form that every model of the zoo has: named stages that run one after the other, and split levels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from torch import nn

from undergrowth.core.errors import InputError, nearest


class Staged(nn.Sequential):
    """A sequence of named stages; `levels` names the first stage above each split level.

    Everything before that stage is the lower part φ, the stage and all after it the upper part θ. Since
    stages run strictly one after the other, the features at a level are `model[: model.position(level)](x)`.

    The constructor takes the stages alone as well, because `nn.Sequential` makes slices of a model that way:
    a slice is a `Staged` without levels.
    """

    levels: dict[str, str]

    def __init__(self, stages: Mapping[str, nn.Module], levels: Mapping[str, str] | None = None) -> None:
        super().__init__(OrderedDict(stages))
        self.levels = dict(levels or {})

    def position(self, level: str) -> int:
        """The number of stages below a split level."""
        if level not in self.levels:
            raise InputError(f"split level '{level}' is not one of this model's: {nearest(level, self.levels)}")
        return list(self._modules).index(self.levels[level])
