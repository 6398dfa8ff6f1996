"""Samples that are copied to a GPU. Here the CPU stands in for it; only pinned memory is missing."""

from __future__ import annotations

import pytest
import torch

from undergrowth.core import Shard
from undergrowth.engines import samples
from undergrowth.engines.samples import Samples


class Numbered:
    """Device N has N samples of the number N; how often each was read is counted."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def train(self, device: str) -> Shard:
        self.read.append(device)
        count = int(device)
        return Shard(torch.full((count, 2), float(count)), torch.full((count,), count))

    def size(self, device: str) -> int:
        return int(device)


@pytest.fixture
def near(monkeypatch):
    plain = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **rest: plain(*size, **rest))
    monkeypatch.setattr(samples, "memory_limit", lambda place: 10_000)
    found = Samples(Numbered(), "cpu")
    found._cuda = True
    return found


def check(near: Samples, device: str) -> None:
    shard, count = near.of(device), int(device)
    assert shard.x.shape == (count, 2) and shard.y.tolist() == [count] * count
    assert bool((shard.x == count).all())


@pytest.mark.parametrize("devices", [["3"], ["1", "0", "5"], [str(number) for number in range(12)]])
def test_every_device_gets_its_samples_and_is_read_once(near, devices):
    near.prefetch(devices)
    for device in devices:
        check(near, device)
    near.prefetch(devices)
    assert near._shards.read == devices


def test_beyond_the_limit_samples_are_read_again(near, monkeypatch):
    monkeypatch.setattr(samples, "memory_limit", lambda place: 100)
    near.prefetch(["3", "4", "5", "6"])  # 48, 64, …: there was room when the second came
    assert near._shards.read == ["3", "4"]
    for device in ("3", "4", "5", "6", "5"):
        check(near, device)
    assert near._shards.read == ["3", "4", "5", "6", "5"]


def test_samples_of_different_shapes_are_copied_one_by_one(near, monkeypatch):
    first = Shard(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))
    second = Shard(torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64))
    monkeypatch.setattr(near._shards, "train", {"a": first, "b": second}.__getitem__)
    near.prefetch(["a", "b"])
    assert near.of("a").x.shape == (2, 3) and near.of("b").x.shape == (2, 4)
