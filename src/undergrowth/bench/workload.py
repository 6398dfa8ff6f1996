"""The workloads that simulators are compared on: synthetic devices with log-normal sizes from 20 to 500 samples."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.format import open_memmap
from torch import Tensor

from undergrowth.bench.protocol import FACTS, WEIGHTS
from undergrowth.core import Context, Model, Packet, Shard, UniformSampler, View, Weights
from undergrowth.models import builder

STRENGTH = 0.2  # of a class's pattern and of the noise on top: about that of written characters
COARSE = 4  # a pattern consists of squares of this many pixels a side


@dataclass(frozen=True)
class SyntheticPopulation:
    """Devices with noisy patterns of their classes: images, or texts if there is a `vocabulary`.

    Samples are computed when they are asked for and are the same every time.
    """

    count: int
    classes: int = 62
    shape: tuple[int, ...] = (1, 28, 28)
    vocabulary: int = 0
    name: str = "synthetic"

    @cached_property
    def sizes(self) -> np.ndarray[Any, Any]:
        draws = np.random.default_rng(0).lognormal(np.log(120), 0.8, self.count)
        return draws.clip(20, 500).astype(int)

    @cached_property
    def devices(self) -> tuple[str, ...]:
        return tuple(f"device-{number:06d}" for number in range(self.count))

    @cached_property
    def _patterns(self) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        if self.vocabulary:
            return torch.randint(0, self.vocabulary, (self.classes, *self.shape), generator=generator)
        channels, height, width = self.shape
        coarse = torch.randn(self.classes, channels, height // COARSE, width // COARSE, generator=generator)
        return F.interpolate(coarse, scale_factor=COARSE)

    def size(self, device: str) -> int:
        return int(self.sizes[int(device[7:])])

    def train(self, device: str) -> Shard:
        return self._samples(int(device[7:]), self.size(device))

    def test(self, device: str) -> Shard:
        return self._samples(0, 0)

    def central_test(self) -> Shard:
        return self._samples(self.count, 500)

    def _samples(self, seed: int, size: int) -> Shard:
        generator = torch.Generator().manual_seed(1 + seed)
        y = torch.randint(0, self.classes, (size,), generator=generator)
        if self.vocabulary:
            noise = torch.randint(0, self.vocabulary, (size, *self.shape), generator=generator)
            return Shard(torch.where(noise % 2 == 0, self._patterns[y], noise), y)
        pixels = torch.randn(size, *self.shape, generator=generator)
        return Shard(STRENGTH * (self._patterns[y] + pixels), y)


@dataclass(frozen=True)
class InMemoryPopulation:
    """A population whose training shards are computed in advance, so that computing them is not measured."""

    shards: dict[str, Shard]
    inner: SyntheticPopulation

    @classmethod
    def of(cls, population: SyntheticPopulation) -> InMemoryPopulation:
        return cls({device: population.train(device) for device in population.devices}, population)

    @property
    def devices(self) -> tuple[str, ...]:
        return self.inner.devices

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inner.shape

    @property
    def classes(self) -> int:
        return self.inner.classes

    def size(self, device: str) -> int:
        return len(self.shards[device])

    def train(self, device: str) -> Shard:
        return self.shards[device]


@dataclass(frozen=True)
class Contest:
    """The work that every contender does: `warm` rounds and then `rounds` that count, each with a cohort of devices."""

    model: str
    cohort: int
    rounds: int
    devices: int = 1000
    batch: int = 20
    lr: float = 0.1
    warm: int = 1
    shape: tuple[int, ...] = (1, 28, 28)
    classes: int = 62
    vocabulary: int = 0

    @property
    def clients(self) -> int:
        """Jobs in the rounds that count."""
        return self.cohort * self.rounds

    @property
    def population(self) -> SyntheticPopulation:
        return SyntheticPopulation(self.devices, self.classes, self.shape, self.vocabulary)

    def cohorts(self) -> list[list[int]]:
        """The devices that a run with seed 0 asks in every round."""
        view = View(self.population.devices)
        contexts = [Context(0, "server", number) for number in range(self.warm + self.rounds)]
        asked = [UniformSampler().choose(self.cohort, view, Packet(), context) for context in contexts]
        return [[int(device[7:]) for device in cohort] for cohort in asked]

    def module(self) -> Model:
        return Model(builder(self.model, self.shape, self.classes))

    def initial(self) -> Weights:
        """The weights that a run with seed 0 starts from."""
        return self.module().initial(Context(0, "server", 0).key("model"))

    def write(self, folder: Path) -> None:
        """Writes the folder that contenders read (`protocol.py`)."""
        population = self.population
        starts = [0, *np.cumsum(population.sizes).tolist()]
        kind = np.int64 if self.vocabulary else np.float32
        x = open_memmap(folder / "x.npy", mode="w+", dtype=kind, shape=(starts[-1], *self.shape))
        y = open_memmap(folder / "y.npy", mode="w+", dtype=np.int64, shape=(starts[-1],))
        for number, device in enumerate(population.devices):
            shard = population.train(device)
            x[starts[number] : starts[number + 1]] = shard.x.numpy()
            y[starts[number] : starts[number + 1]] = shard.y.numpy()
        save_weights(folder / WEIGHTS, self.initial())
        names = ("model", "classes", "shape", "vocabulary", "batch", "lr", "warm")
        facts = {name: getattr(self, name) for name in names}
        (folder / FACTS).write_text(json.dumps({**facts, "starts": starts, "cohorts": self.cohorts()}))

    def loss(self, weights: Weights) -> float:
        """The loss on samples that no device has."""
        test = self.population.central_test()
        with torch.no_grad():
            return float(F.cross_entropy(self.module()(weights, test.x), test.y))


def save_weights(file: Path, weights: Weights) -> None:
    np.savez(file, *(value.detach().cpu().numpy() for value in weights.values()))


def load_weights(file: Path, like: Weights) -> dict[str, Tensor]:
    with np.load(file) as arrays:
        return {name: torch.from_numpy(arrays[key]) for name, key in zip(like, arrays.files, strict=True)}
