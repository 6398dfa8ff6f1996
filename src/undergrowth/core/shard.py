"""Shard: the samples that one device, or the server, holds."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Shard:
    """Inputs and labels with the same first dimension, on any torch device."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return self.y.shape[0]

    def take(self, index: Tensor) -> Shard:
        return Shard(self.x[index], self.y[index])

    def to(self, torch_device: str) -> Shard:
        """The samples on `torch_device`. Copies from pinned memory do not block; later work on the device waits."""
        return Shard(*(part.to(torch_device, non_blocking=part.is_pinned()) for part in (self.x, self.y)))
