"""Streams: what is in the memory of a device in each round, and what its test samples are."""

from __future__ import annotations

import pickle
from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from undergrowth.core import Context, InputError, Shard
from undergrowth.data import Stream, StreamedPopulation, fixed_at, partition_dataset, pool, stream_population

from .samples import table

SIZES = {"a": 7, "b": 5, "c": 0, "d": 12, "e": 6}
GOLDEN = (5**0.5 - 1) / 2


class Numbered:
    """Devices whose samples say where they come from: the label is the device, the input its position in the shard."""

    name, classes, shape = "numbered", 5, (1, 2, 2)
    devices = tuple(SIZES)

    def _shard(self, device: str, count: int, first: int) -> Shard:
        number = torch.arange(first, first + count, dtype=torch.float32)
        corners = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])  # one marked corner shows by how much an image is turned
        return Shard(number.view(-1, 1, 1, 1) + corners / 2, torch.full((count,), self.devices.index(device)))

    def train(self, device: str) -> Shard:
        return self._shard(device, SIZES[device], 0)

    def test(self, device: str) -> Shard:
        return self._shard(device, 2 * SIZES[device], 100)

    def central_test(self) -> Shard:
        return self.test("a")

    def size(self, device: str) -> int:
        return SIZES[device]


def streamed(**settings: Any) -> StreamedPopulation:
    return stream_population(Numbered(), Stream(**{"memory": 4, "arrive": 2, **settings}), seed=3)


def items(shard: Shard) -> set[tuple[str, int, int]]:
    """Device, position and quarter turns of every sample."""
    corners = {(0, 0): 0, (1, 0): 1, (1, 1): 2, (0, 1): 3}
    found = []
    for x, y in zip(shard.x, shard.y.tolist(), strict=True):
        row, column = divmod(int(x.flatten().argmax()), 2)
        found.append((Numbered.devices[y], int(x.min()), corners[row, column]))
    assert len(set(found)) == len(found)  # no sample takes two places
    return set(found)


def memories(population: StreamedPopulation, device: str, rounds: int) -> list[set[tuple[str, int, int]]]:
    """The formulas as a plain queue: the items in the memory before each round."""
    stream, cycle = population.stream, population.cycle
    moves = cycle.index(device) < round(stream.fraction * len(cycle))
    offset = Context(3, device, 0).key("stream") / 2**63
    memory: deque[tuple[str, int, int]] = deque(maxlen=stream.memory)
    found, number = [], 0
    for round_ in range(rounds):
        for _ in range(stream.arrive if round_ else stream.memory):
            shifts = 0 if stream.shift == "none" else round_ // stream.every
            over = stream.over if stream.shift == "gradual" else 1
            if shifts and (offset + number * GOLDEN) % 1 >= (round_ % stream.every + 1) / over:
                shifts -= 1  # it does not follow the shift yet
            place = shifts % 2 if stream.shift == "recurring" else shifts
            source, turns = device, 0
            if moves and stream.kind == "place":
                source = cycle[(cycle.index(device) + place) % len(cycle)]
            elif moves:
                turns = place % 4
            memory.append((source, number % SIZES[source], turns))
            number += 1
        found.append(set(memory))
    return found


STREAMS: dict[str, dict[str, Any]] = {
    "no shift": {},
    "a large memory": {"memory": 20, "arrive": 3, "shift": "sudden", "every": 4},
    "more arrive than fit in": {"memory": 2, "arrive": 5, "shift": "sudden", "every": 3},
    "sudden": {"shift": "sudden", "every": 3},
    "gradual": {"memory": 6, "arrive": 3, "shift": "gradual", "every": 6, "over": 4},
    "recurring": {"shift": "recurring", "every": 3, "kind": "rotation"},
    "some devices": {"shift": "gradual", "every": 4, "over": 2, "kind": "rotation", "fraction": 0.5},
}


@pytest.mark.parametrize("name", STREAMS)
def test_the_memory_is_a_queue_of_the_last_arrivals(name: str) -> None:
    population = streamed(**STREAMS[name])
    for device in ("a", "b", "d", "e"):
        for number, expected in enumerate(memories(population, device, rounds=20)):
            now = population.at(number)
            assert items(now.train(device)) == expected
            assert now.size(device) == len(expected) <= population.stream.memory


def test_a_sample_arrives_and_expires() -> None:
    population = streamed()
    kept = [sorted(position for _, position, _ in items(population.at(number).train("d"))) for number in range(6)]
    assert kept == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [6, 7, 8, 9], [8, 9, 10, 11], [0, 1, 10, 11]]


def test_a_device_without_samples_never_has_any() -> None:
    now = streamed(shift="sudden", every=1).at(4)
    assert now.size("c") == len(now.train("c")) == len(now.test("c")) == 0


def test_the_samples_are_a_function_of_seed_device_and_round() -> None:
    population = streamed(**STREAMS["gradual"])
    backwards = {number: population.at(number).train("d") for number in reversed(range(9))}
    copied: StreamedPopulation = pickle.loads(pickle.dumps(population))
    for number, shard in backwards.items():
        again = copied.at(2).at(number).train("d")
        assert torch.equal(again.x, shard.x)
        assert torch.equal(again.y, shard.y)
    other = stream_population(Numbered(), population.stream, seed=4)
    assert any(items(other.at(8).train(device)) != items(population.at(8).train(device)) for device in "abde")


def test_a_large_memory_without_a_shift_holds_the_shard_as_it_is() -> None:
    dataset = table()
    plain = partition_dataset(dataset, "iid", 3, seed=0)
    population = stream_population(plain, Stream(memory=len(dataset), arrive=3), seed=0)
    for device in plain.devices:
        for number in (0, 1, 7):
            now = population.at(number)
            for held, shard in ((now.train(device), plain.train(device)), (now.test(device), plain.test(device))):
                assert torch.equal(held.x, shard.x)
                assert torch.equal(held.y, shard.y)
    assert population.counts().tolist() == plain.counts().tolist()  # type: ignore[attr-defined]


def test_every_place_is_that_of_another_device_until_all_were_visited() -> None:
    population = streamed(shift="sudden", every=1)
    for device in ("a", "b", "d", "e"):
        visited = [population.at(number).test(device).y[0].item() for number in range(5)]
        assert len(set(visited[:4])) == 4
        assert Numbered.devices[int(visited[0])] == device
        assert visited[4] == visited[0]


def test_a_recurring_shift_returns_to_the_same_distribution() -> None:
    population = streamed(shift="recurring", every=4, kind="rotation")
    tests = [items(population.at(number).test("a")) for number in (0, 5, 9, 13)]
    assert tests[0] == tests[2] == items(Numbered().test("a"))
    assert tests[1] == tests[3] == {(device, position, 1) for device, position, _ in tests[0]}
    assert {turns for *_, turns in items(population.at(11).train("a"))} == {0}


def test_test_samples_follow_a_gradual_shift() -> None:
    population = streamed(shift="gradual", every=10, over=4)
    old, new = items(population.at(9).test("d")), items(population.at(13).test("d"))
    assert not old & new
    for number, done in ((10, 0.25), (11, 0.5), (12, 0.75)):
        now = items(population.at(number).test("d"))
        assert now <= old | new
        assert len(now & new) / len(new) == pytest.approx(done, abs=0.13)
        assert len(now & old) / len(old) == pytest.approx(1 - done, abs=0.13)


def test_only_a_fraction_of_the_devices_shifts() -> None:
    population = streamed(shift="sudden", every=1, fraction=0.5)
    moved = [
        device
        for device in ("a", "b", "d", "e")
        if items(population.at(9).train(device)) != items(streamed().at(9).train(device))
    ]
    assert moved == sorted(population.cycle[:2])


def test_a_fixed_population_and_a_pool() -> None:
    population = streamed(**STREAMS["sudden"])
    fixed = fixed_at(population, 5)
    assert not hasattr(fixed, "at")
    assert items(fixed.train("a")) == items(population.at(5).train("a"))
    pooled: Any = pool(population)
    everything = set.union(*(items(population.at(5).train(device)) for device in "abde"))
    assert items(pooled.at(5).train("pool")) == everything
    assert fixed_at(Numbered(), 5).devices == Numbered.devices


def test_shifts_begin_in_these_rounds() -> None:
    assert Stream(4, 2, "sudden", every=3).shifts(9) == [3, 6]
    assert Stream(4, 2).shifts(9) == []
    begun, done = Stream(4, 2, "gradual", every=4, over=2).progress(np.arange(9))
    assert begun.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    assert done.tolist() == [1, 1, 1, 1, 0.5, 1, 1, 1, 0.5]


def test_data_that_cannot_shift_so_is_refused() -> None:
    class Table(Numbered):
        shape = (3,)  # type: ignore[assignment]

    class Single(Numbered):
        devices = ("a",)

    stream = Stream(4, 2, "sudden")
    with pytest.raises(InputError, match=r"stream.kind 'rotation': .* shape \(3,\), and only square images"):
        stream_population(Table(), replace(stream, kind="rotation"), 0)
    with pytest.raises(InputError, match=r"stream.kind 'place': .* samples on 1 device, so there is no other place"):
        stream_population(Single(), stream, 0)
