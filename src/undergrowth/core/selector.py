"""Selector: the samples that a device trains on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from undergrowth.core.packet import Weights
from undergrowth.core.shard import Shard

if TYPE_CHECKING:
    from undergrowth.core.task import Task


class Selector:
    """`again`: select anew in every epoch instead of once per job. `needs_classes`: the task must be classification."""

    again: bool = False
    needs_classes: ClassVar[bool] = False

    def pick(self, task: Task, weights: Weights, shard: Shard, generator: torch.Generator) -> Tensor:
        """Positions of the selected samples."""
        raise NotImplementedError("a selector defines pick")


@dataclass(frozen=True)
class AllSelector(Selector):
    """Every sample."""

    def pick(self, task: Task, weights: Weights, shard: Shard, generator: torch.Generator) -> Tensor:
        return torch.arange(len(shard))
