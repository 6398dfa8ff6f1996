"""The workload that simulators are compared on: 28×28 images, 62 classes, log-normal sizes from 20 to 500."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.format import open_memmap
from torch import Tensor

from undergrowth.bench.opponents.given import FACTS, WEIGHTS
from undergrowth.core import Context, Model, Packet, Shard, Uniform, View, Weights
from undergrowth.models import builder

STRENGTH = 0.2  # of the pattern of a class, and of the noise on top: about that of written characters
COARSE = 4  # pixels on a side of what a pattern is made of


@dataclass(frozen=True)
class Writers:
    """Devices with noisy images of their classes' patterns, made when asked for, the same every time."""

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

    @cached_property
    def _patterns(self) -> Tensor:
        channels, height, width = self.shape
        generator = torch.Generator().manual_seed(0)
        coarse = torch.randn(self.classes, channels, height // COARSE, width // COARSE, generator=generator)
        return F.interpolate(coarse, scale_factor=COARSE)

    def size(self, device: str) -> int:
        return int(self.sizes[int(device[7:])])

    def train(self, device: str) -> Shard:
        return self._made(int(device[7:]), self.size(device))

    def test(self, device: str) -> Shard:
        return Shard(torch.empty(0, *self.shape), torch.empty(0, dtype=torch.int64))

    def central_test(self) -> Shard:
        return self._made(self.count, 500)

    def _made(self, key: int, size: int) -> Shard:
        generator = torch.Generator().manual_seed(1 + key)
        y = torch.randint(0, self.classes, (size,), generator=generator)
        noise = torch.randn(size, *self.shape, generator=generator)
        return Shard(STRENGTH * (self._patterns[y] + noise), y)


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


@dataclass(frozen=True)
class Contest:
    """What all contenders do: so many rounds after those that warm up, each with a cohort of all devices."""

    model: str
    cohort: int
    rounds: int
    devices: int = 1000
    batch: int = 20
    lr: float = 0.1
    warm: int = 1  # rounds before those that count
    shape: tuple[int, ...] = (1, 28, 28)
    classes: int = 62

    @property
    def clients(self) -> int:
        """Of the rounds that count."""
        return self.cohort * self.rounds

    @property
    def writers(self) -> Writers:
        return Writers(self.devices, self.classes, self.shape)

    def cohorts(self) -> list[list[int]]:
        """Whom a run of seed 0 asks in every round."""
        everybody = View(self.writers.devices)
        contexts = [Context(0, "server", number) for number in range(self.warm + self.rounds)]
        asked = [Uniform().choose(self.cohort, everybody, Packet(), context) for context in contexts]
        return [[int(device[7:]) for device in cohort] for cohort in asked]

    def module(self) -> Model:
        return Model(builder(self.model, self.shape, self.classes))

    def initial(self) -> Weights:
        """What a run of seed 0 starts from."""
        return self.module().initial(Context(0, "server", 0).key("model"))

    def write(self, folder: Path) -> None:
        """Everything into a folder, for contenders that are other programs."""
        writers = self.writers
        starts = [0, *np.cumsum(writers.sizes).tolist()]
        x = open_memmap(folder / "x.npy", mode="w+", dtype=np.float32, shape=(starts[-1], *self.shape))
        y = open_memmap(folder / "y.npy", mode="w+", dtype=np.int64, shape=(starts[-1],))
        for number, device in enumerate(writers.devices):
            shard = writers.train(device)
            x[starts[number] : starts[number + 1]] = shard.x.numpy()
            y[starts[number] : starts[number + 1]] = shard.y.numpy()
        save_weights(folder / WEIGHTS, self.initial())
        same = {name: getattr(self, name) for name in ("model", "classes", "shape", "batch", "lr", "warm")}
        (folder / FACTS).write_text(json.dumps({**same, "starts": starts, "cohorts": self.cohorts()}))

    def loss(self, weights: Weights) -> float:
        """On samples that nobody has trained on."""
        test = self.writers.central_test()
        with torch.no_grad():
            return float(F.cross_entropy(self.module()(weights, test.x), test.y))


def save_weights(file: Path, weights: Weights) -> None:
    np.savez(file, *(value.detach().cpu().numpy() for value in weights.values()))


def load_weights(file: Path, like: Weights) -> dict[str, Tensor]:
    with np.load(file) as arrays:
        return {name: torch.from_numpy(arrays[key]) for name, key in zip(like, arrays.files, strict=True)}
