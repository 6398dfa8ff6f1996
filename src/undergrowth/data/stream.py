"""Streams: the samples of a device arrive, expire and change from round to round.

A device has a memory of `memory` samples. It is full before the first round; after every round `arrive` samples arrive,
and the oldest ones expire. The samples of a device arrive in the order of its shard, and again from the first one after
the last. A sample that is in the memory already takes no further place.

From one shift to the next, every `every` rounds, the samples that arrive come from one distribution. A sudden shift is
complete at once. In a gradual one, a growing part of what arrives is of the new distribution, and all of it after
`over` rounds. A recurring one is sudden and goes back and forth between two distributions. What is in the memory does
not change: it expires. The test samples of a device are always those of its present distribution.

The n-th distribution of a device (n = 0 before the first shift) is, with kind `place`, that of the samples of another
device: n places further in a random cycle of all devices. With kind `rotation`, images are turned by n quarter turns.

The samples of a device in a round are a function of the seed, the device and the round alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from undergrowth.core import Context, InputError, Shard
from undergrowth.data.population import Population

_GOLDEN = (5**0.5 - 1) / 2  # multiples of it, modulo 1, are spread evenly between 0 and 1


@dataclass(frozen=True)
class Stream:
    """How samples arrive, expire and shift. Rounds are counted from 0."""

    memory: int
    arrive: int
    shift: str = "none"  # none | sudden | gradual | recurring
    kind: str = "place"  # place | rotation
    every: int = 10  # rounds from one shift to the next
    over: int = 1  # rounds that a gradual shift takes
    fraction: float = 1.0  # of the devices, whose data shift
    local_epochs: int = 0  # that a device trains the model of its own after every round

    def shifts(self, rounds: int) -> list[int]:
        """The rounds, of the first `rounds` ones, in which a shift begins."""
        return [] if self.shift == "none" else list(range(self.every, rounds, self.every))

    def distribution(self, shifts: int) -> int:
        """The number of the distribution that samples come from once `shifts` shifts have begun."""
        if self.shift == "none" or shifts < 0:
            return 0
        return shifts % 2 if self.shift == "recurring" else shifts

    def progress(self, rounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each of `rounds`, how many shifts have begun, and which fraction of the last one is complete."""
        begun = rounds // self.every
        done = np.minimum(1.0, (rounds - begun * self.every + 1) / (self.over if self.shift == "gradual" else 1))
        return begun, np.where(begun > 0, done, 1.0)


@dataclass(frozen=True, eq=False)
class HeldPopulation:
    """A population whose samples are those that the devices hold in one round. Everything else is as it was."""

    population: Population
    stream: Stream
    seed: int
    cycle: tuple[str, ...]  # the devices with samples, in random order; the first ones shift
    positions: Mapping[str, int]  # device → its position in `cycle`
    round: int = 0

    def __getattr__(self, name: str) -> Any:
        if name == "population" or name.startswith("__"):  # while a copy of this object is being made
            raise AttributeError(name)
        return getattr(self.population, name)

    @property
    def devices(self) -> Sequence[str]:
        return self.population.devices

    @property
    def classes(self) -> int:
        return self.population.classes

    @property
    def shape(self) -> tuple[int, ...]:
        return self.population.shape

    @property
    def name(self) -> str:
        return self.population.name

    def central_test(self) -> Shard:
        return self.population.central_test()

    def size(self, device: str) -> int:
        return sum(len(places) for places in self._held(device).values())

    def train(self, device: str) -> Shard:
        held = self._held(device)
        if not held:
            return self.population.train(device)
        return Shard.join([
            _turn(self.population.train(source).take(torch.from_numpy(places)), turns)
            for (source, turns), places in held.items()
        ])  # fmt: skip

    def test(self, device: str) -> Shard:
        """The test samples of the present distribution; during a gradual shift, those of two in the same proportion."""
        begun, done = (value.item() for value in self.stream.progress(np.array(self.round)))
        now, before = (self._origin(device, self.stream.distribution(number)) for number in (begun, begun - 1))
        new = _turn(self.population.test(now[0]), now[1])
        if done == 1 or now == before:
            return new
        old = _turn(self.population.test(before[0]), before[1])
        has_changed, had_changed = (self._draws(device, np.arange(len(shard))) < done for shard in (new, old))
        return Shard.join([new.take(torch.from_numpy(has_changed)), old.take(torch.from_numpy(~had_changed))])

    def _held(self, device: str) -> dict[tuple[str, int], np.ndarray]:
        """The positions of the samples in the memory, sorted, by their origin: a device and a number of turns."""
        if device not in self.positions:
            return {}
        stream = self.stream
        first = self.round * stream.arrive
        items = np.arange(first, first + stream.memory)  # numbers of the samples, in the order in which they arrive
        arrived = np.maximum(0, (items - stream.memory) // stream.arrive + 1)  # the round before which each one arrives
        begun, done = stream.progress(arrived)
        shifts = np.where(self._draws(device, items) < done, begun, begun - 1)
        held: dict[tuple[str, int], np.ndarray] = {}
        for number in np.unique(shifts):
            origin = self._origin(device, stream.distribution(int(number)))
            places = items[shifts == number] % self.population.size(origin[0])
            held[origin] = np.union1d(held.get(origin, places), places)
        return held

    def _origin(self, device: str, distribution: int) -> tuple[str, int]:
        """The device whose samples a device has in a distribution, and by how many quarter turns they are turned."""
        position = self.positions.get(device, len(self.cycle))
        if position >= round(self.stream.fraction * len(self.cycle)):
            return device, 0
        if self.stream.kind == "rotation":
            return device, distribution % 4
        return self.cycle[(position + distribution) % len(self.cycle)], 0

    def _draws(self, device: str, items: np.ndarray) -> np.ndarray:
        """A number between 0 and 1 for each of `items`, which decides when it follows a gradual shift."""
        return (Context(self.seed, device, 0).key("stream") / 2**63 + items * _GOLDEN) % 1.0


class StreamedPopulation(HeldPopulation):
    """A population whose samples change from round to round. Its own samples are those before the first round."""

    def at(self, round: int) -> StreamedPopulation:
        """The population in a round of the root, counted from 0."""
        return self if round == self.round else replace(self, round=round)


def fixed_at(population: Population, round: int) -> Population:
    """The population with the samples that the devices hold in one round, for ever."""
    if not isinstance(population, StreamedPopulation):
        return population
    now = population.at(round)
    return HeldPopulation(now.population, now.stream, now.seed, now.cycle, now.positions, now.round)


def stream_population(population: Population, stream: Stream, seed: int) -> StreamedPopulation:
    """The population as the devices hold it before the first round; `at` has it in later rounds."""
    able = [device for device in population.devices if population.size(device)]
    shape = tuple(population.shape)
    if stream.shift != "none" and stream.kind == "rotation" and (len(shape) < 2 or shape[-2] != shape[-1]):
        raise InputError(
            f"stream.kind 'rotation': data '{population.name}' has inputs of shape {shape}, and only square images can "
            "be turned; write place"
        )
    if stream.shift != "none" and stream.kind == "place" and len(able) < 2:
        raise InputError(
            f"stream.kind 'place': data '{population.name}' has samples on {len(able)} device, so there is no other "
            "place; write rotation, or give more clients"
        )
    order = np.random.default_rng(Context(seed, "stream", 0).key("cycle")).permutation(len(able))
    cycle = tuple(able[number] for number in order)
    return StreamedPopulation(population, stream, seed, cycle, {name: place for place, name in enumerate(cycle)})


def _turn(shard: Shard, turns: int) -> Shard:
    return Shard(shard.x.rot90(turns, (-2, -1)).contiguous(), shard.y) if turns else shard
