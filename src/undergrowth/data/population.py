"""A population: devices by name, each with samples of its own that are put together when asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np

from undergrowth.core.errors import InputError, nearest
from undergrowth.core.shard import Shard
from undergrowth.data.dataset import Dataset


@runtime_checkable
class Population(Protocol):
    """What a run asks for data. Write your own to have shards made when they are asked for, for any number of devices.

    An object may also have `counts()` as in Partitioned, and a report draws which device holds what; and `public`, a
    Shard that the server holds and no device.
    """

    @property
    def devices(self) -> Sequence[str]: ...
    @property
    def classes(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def name(self) -> str: ...
    def train(self, device: str) -> Shard: ...
    def test(self, device: str) -> Shard: ...
    def central_test(self) -> Shard: ...
    def size(self, device: str) -> int: ...


@dataclass(frozen=True, eq=False)
class Partitioned:
    """A data set spread over devices. A device may hold no sample at all: its shards are then empty.

    Device d owns order[starts[d] : starts[d + 1]]; the last held[d] of these are its own test part.
    """

    dataset: Dataset
    rule: str
    order: np.ndarray  # positions in the data set, device after device
    starts: np.ndarray  # where each device begins in `order`, and where the last ends
    held: np.ndarray  # how many samples each device keeps back for testing
    labels: tuple[str, ...] = ()  # natural partitions: the group behind each device
    public: Shard | None = None  # what was taken out before, for the server

    @cached_property
    def devices(self) -> tuple[str, ...]:
        count = len(self.held)
        width = max(3, len(str(count - 1)))
        return tuple(f"device-{number:0{width}d}" for number in range(count))

    @property
    def classes(self) -> int:
        return self.dataset.classes

    @property
    def shape(self) -> tuple[int, ...]:
        return self.dataset.shape

    @property
    def name(self) -> str:
        return self.dataset.name

    def train(self, device: str) -> Shard:
        number = self._number(device)
        return self.dataset.shard(self.order[self.starts[number] : self._border(number)])

    def test(self, device: str) -> Shard:
        """The device's own held-out part; a device with few samples may have none."""
        number = self._number(device)
        return self.dataset.shard(self.order[self._border(number) : self.starts[number + 1]])

    def central_test(self) -> Shard:
        return self.dataset.central_test()

    def size(self, device: str) -> int:
        """How many training samples a device has, without building its shard."""
        number = self._number(device)
        return int(self._border(number) - self.starts[number])

    def counts(self) -> np.ndarray:
        """Training labels, devices × classes."""
        owned = np.diff(self.starts)
        device = np.repeat(np.arange(len(owned)), owned)
        training = np.arange(len(self.order)) < np.repeat(self.starts[1:] - self.held, owned)
        cell = device * self.classes + self.dataset.labels[self.order]
        cells = np.bincount(cell[training], minlength=len(owned) * self.classes)
        return cells.reshape(len(owned), self.classes)

    def _border(self, number: int) -> int:
        return int(self.starts[number + 1] - self.held[number])

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {name: number for number, name in enumerate(self.devices)}

    def _number(self, device: str) -> int:
        if device not in self._numbers:
            # Only a few names are compared: looking for the nearest of 100 000 takes long.
            raise InputError(
                f"device {device!r} is not one of the {len(self.devices)} devices; "
                f"{nearest(str(device), (self.devices[0], self.devices[-1]))}"
            )
        return self._numbers[device]
