"""Shard: the samples that one device, or the server, holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def hidden_like(labels: Tensor) -> Tensor:
    """Labels that say nothing: -1, or NaN where labels are floats."""
    return torch.full_like(labels, torch.nan if labels.is_floating_point() else -1)


def are_hidden(labels: Tensor) -> bool:
    """Whether the labels say nothing."""
    return bool((labels.isnan() if labels.is_floating_point() else labels < 0).all())


@dataclass(frozen=True)
class Shard:
    """Inputs and labels with the same first dimension, on any torch device."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return self.y.shape[0]

    @staticmethod
    def join(shards: Sequence[Shard]) -> Shard:
        """All samples of at least one shard, in order."""
        if len(shards) == 1:
            return shards[0]
        return Shard(torch.cat([shard.x for shard in shards]), torch.cat([shard.y for shard in shards]))

    def take(self, index: Tensor) -> Shard:
        return Shard(self.x[index], self.y[index])

    def to(self, torch_device: str) -> Shard:
        """The samples on `torch_device`. Copies from pinned memory do not block; later work on the device waits."""
        return Shard(*(part.to(torch_device, non_blocking=part.is_pinned()) for part in (self.x, self.y)))
