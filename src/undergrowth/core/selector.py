"""Selector: on which of its samples a device trains. A piece of its own, apart from methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from undergrowth.core.packet import Weights
from undergrowth.core.shard import Shard

if TYPE_CHECKING:
    from undergrowth.core.task import Task


class Selector:
    """`again`: pick anew in every epoch rather than once."""

    again: bool = False

    def pick(self, task: Task, weights: Weights, shard: Shard, generator: torch.Generator) -> Tensor:
        """Positions of the chosen samples."""
        raise NotImplementedError("a selector defines pick")


@dataclass(frozen=True)
class All(Selector):
    """Every sample."""

    def pick(self, task: Task, weights: Weights, shard: Shard, generator: torch.Generator) -> Tensor:
        return torch.arange(len(shard))
