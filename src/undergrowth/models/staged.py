"""The base class of all models of the zoo: named stages in sequence, and split levels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from torch import nn

from undergrowth.core import InputError, suggest


class Staged(nn.Sequential):
    """A sequence of named stages. `levels` maps each split level to the first stage above it.

    The stages before it are the lower part φ; that stage and the following ones are the upper part θ. The features at a
    level are `model[: model.position(level)](x)`.

    `levels` is optional, because `nn.Sequential` builds a slice from its stages alone: a slice has no levels.
    `published` is the first name in a published file of weights that has the tensors of this model in the same order.
    """

    levels: dict[str, str]
    published: str | None

    def __init__(
        self, stages: Mapping[str, nn.Module], levels: Mapping[str, str] | None = None, published: str | None = None
    ) -> None:
        super().__init__(OrderedDict(stages))
        self.levels = dict(levels or {})
        self.published = published

    def position(self, level: str) -> int:
        """The number of stages below a split level."""
        return list(self._modules).index(stage_at(self.levels, level))


def stage_at(levels: Mapping[str, str], level: str) -> str:
    """The stage or submodule at a split level."""
    if level not in levels:
        raise InputError(f"split level '{level}' is not a level of this model; {suggest(level, levels)}")
    return levels[level]
