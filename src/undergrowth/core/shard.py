"""The samples that one device, or the server, holds."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Shard:
    """Inputs and labels with the same first dimension; either may live on any torch device."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return self.y.shape[0]

    def take(self, index: Tensor) -> Shard:
        return Shard(self.x[index], self.y[index])

    def to(self, device: str) -> Shard:
        """The same samples there; from pinned memory without waiting, since what uses them there waits anyway."""
        return Shard(*(part.to(device, non_blocking=part.is_pinned()) for part in (self.x, self.y)))
