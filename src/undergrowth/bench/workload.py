"""The workload that simulators are compared on: 28×28 images, 62 classes, log-normal sizes from 20 to 500."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from undergrowth.core import Shard


@dataclass(frozen=True)
class Writers:
    """Devices with random images, made when asked for; the same device always has the same ones."""

    count: int
    classes: int = 62
    shape: tuple[int, ...] = (1, 28, 28)
    name: str = "writers"

    @cached_property
    def sizes(self) -> np.ndarray:
        draws = np.random.default_rng(0).lognormal(np.log(120), 0.8, self.count)
        return draws.clip(20, 500).astype(int)

    @cached_property
    def devices(self) -> tuple[str, ...]:
        return tuple(f"device-{number:06d}" for number in range(self.count))

    def size(self, device: str) -> int:
        return int(self.sizes[int(device[7:])])

    def train(self, device: str) -> Shard:
        generator = torch.Generator().manual_seed(int(device[7:]))
        x = torch.randn(self.size(device), *self.shape, generator=generator)
        return Shard(x, torch.randint(0, self.classes, (len(x),), generator=generator))

    def test(self, device: str) -> Shard:
        return Shard(torch.empty(0, *self.shape), torch.empty(0, dtype=torch.int64))

    def central_test(self) -> Shard:
        return self.train(self.devices[0])


@dataclass(frozen=True)
class InMemory:
    """A population whose training shards are there already, so that making them is not measured."""

    shards: dict[str, Shard]
    inner: Writers

    @property
    def devices(self) -> tuple[str, ...]:
        return self.inner.devices

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inner.shape

    def size(self, device: str) -> int:
        return len(self.shards[device])

    def train(self, device: str) -> Shard:
        return self.shards[device]
