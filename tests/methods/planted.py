"""A population of digits with planted groups, and the clusters that a method finds in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from sklearn.metrics import adjusted_rand_score

from undergrowth.core import Shard
from undergrowth.data import load
from undergrowth.methods import METHODS
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.federation_builder import federate

SAMPLES, HELD_OUT = 160, 10  # of a device
DEVICES = 6  # of a group


class PlantedPopulation:
    """Devices with random digits. Group g sees its images turned by g·90°, or has its classes in a random order."""

    name, shape, classes = "planted", (1, 8, 8), 10

    def __init__(self, kind: str, groups: int, seed: int) -> None:
        data = load("digits")
        everything = data.shard(torch.arange(len(data.labels)).numpy())
        generator = torch.Generator().manual_seed(seed)
        self.devices = tuple(f"device-{number:02}" for number in range(DEVICES * groups))
        self.groups = [number % groups for number in range(len(self.devices))]
        orders = [torch.randperm(10, generator=generator) for _ in range(groups)]
        self._shards = {}
        for device, group in zip(self.devices, self.groups, strict=True):
            own = everything.take(torch.randperm(len(everything), generator=generator)[:SAMPLES])
            turned = Shard(own.x.rot90(group, (-2, -1)), own.y)
            self._shards[device] = turned if kind == "rotated" else Shard(own.x, orders[group][own.y])

    def train(self, device: str) -> Shard:
        return self._shards[device].take(torch.arange(HELD_OUT, SAMPLES))

    def test(self, device: str) -> Shard:
        return self._shards[device].take(torch.arange(HELD_OUT))

    def central_test(self) -> Shard:
        return self.test(self.devices[0])

    def size(self, device: str) -> int:
        return SAMPLES - HELD_OUT


def recovery(name: str, options: Mapping[str, Any], population: PlantedPopulation, seed: int, folder: Path) -> float:
    """The adjusted Rand index of the planted groups and the clusters whose models the devices use after six rounds."""
    raw = {
        "method": {"name": name, **options},
        "model": "logistic",
        "train": {"rounds": 6, "lr": 0.1, "batch": 16, "epochs": 2},
        "run": {"seed": seed, "out": str(folder), "engine": "serial"},
    }
    method = METHODS[name](**options)
    federation = federate(parse_experiment(raw), method, population)
    federation.driver.start()
    for _ in federation.driver.rounds():
        pass
    state, found = federation.driver.root.state, []
    for device in population.devices:
        used = method.personal(federation.task, state, federation.world.states.get(device), device)
        found.append(next(name for name, kept in state["clusters"].items() if kept["weights"] is used))
    return float(adjusted_rand_score(population.groups, found))
