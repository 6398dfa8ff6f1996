"""A population pooled on one device: the centralised baseline of a federation."""

from __future__ import annotations

import torch

from undergrowth.core.shard import Shard
from undergrowth.data.population import Population

POOL = "pool"


class PooledPopulation:
    """All samples of a population on one device."""

    def __init__(self, population: Population) -> None:
        self.population = population
        self.devices = (POOL,)
        self.name, self.shape, self.classes = population.name, population.shape, population.classes
        self.task = getattr(population, "task", "classification")
        self.black = getattr(population, "black", None)

    def train(self, device: str) -> Shard:
        return _concatenate([self.population.train(name) for name in self.population.devices])

    def test(self, device: str) -> Shard:
        return _concatenate([self.population.test(name) for name in self.population.devices])

    def central_test(self) -> Shard:
        return self.population.central_test()

    def size(self, device: str) -> int:
        return sum(self.population.size(name) for name in self.population.devices)


def _concatenate(shards: list[Shard]) -> Shard:
    return Shard(torch.cat([shard.x for shard in shards]), torch.cat([shard.y for shard in shards]))
