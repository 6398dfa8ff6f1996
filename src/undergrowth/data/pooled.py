"""A population pooled on one device: the centralised baseline of a federation."""

from __future__ import annotations

from undergrowth.core import Shard
from undergrowth.data.population import Population
from undergrowth.data.stream import StreamedPopulation

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
        return Shard.join([self.population.train(name) for name in self.population.devices])

    def test(self, device: str) -> Shard:
        return Shard.join([self.population.test(name) for name in self.population.devices])

    def central_test(self) -> Shard:
        return self.population.central_test()

    def size(self, device: str) -> int:
        return sum(self.population.size(name) for name in self.population.devices)


class StreamedPool(PooledPopulation):
    """The pool of a population whose samples change from round to round."""

    population: StreamedPopulation

    def at(self, round: int) -> StreamedPool:
        return StreamedPool(self.population.at(round))


def pool(population: Population) -> PooledPopulation:
    """All samples of a population on one device."""
    return StreamedPool(population) if isinstance(population, StreamedPopulation) else PooledPopulation(population)
