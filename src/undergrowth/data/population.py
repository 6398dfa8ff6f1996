"""Populations: devices by name, and the samples of each, built on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeGuard

import numpy as np

from undergrowth.core import InputError, Shard, suggest
from undergrowth.data.dataset import Dataset, to_numpy


class Population(Protocol):
    """The data of a run. Shards are built on demand, so that a population may have any number of devices.

    Six attributes are optional: `task`, which is classification by default; `counts()` as in `PartitionedPopulation`,
    which lets a report plot the classes of each device; `groups_by(field)` as there, which lets a topology file or a
    method group devices; `test_groups(field)` as there, for an ensemble of models of groups; `public`, a `Shard` that
    only the server holds; and `black`, the value of a black pixel in each channel of an image, with which augmentation
    pads (default: 0).
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


def is_population(found: object) -> TypeGuard[Population]:
    """Whether `found` has all that a Population must have, be it by `__getattr__`.

    Since Python 3.12, `isinstance` with a protocol does not see what `__getattr__` gives.
    """
    return all(hasattr(found, name) for name in vars(Population) if not name.startswith("_"))


def device_names(count: int) -> tuple[str, ...]:
    """The names of `count` devices, such as device-007."""
    width = max(3, len(str(count - 1)))
    return tuple(f"device-{number:0{width}d}" for number in range(count))


@dataclass(frozen=True, eq=False)
class PartitionedPopulation:
    """A data set partitioned over devices. The shards of a device without samples are empty.

    Device d owns order[starts[d] : starts[d + 1]]; the last held_out[d] of these samples are its test set.
    """

    dataset: Dataset
    rule: str
    order: np.ndarray  # indices in the data set, device by device
    starts: np.ndarray  # where each device begins in `order`, and where the last one ends
    held_out: np.ndarray  # number of test samples of each device
    groups: tuple[str, ...] = ()  # the group behind each device of a natural partition
    public: Shard | None = None  # samples that only the server holds

    @cached_property
    def devices(self) -> tuple[str, ...]:
        return device_names(len(self.held_out))

    @property
    def classes(self) -> int:
        return self.dataset.classes

    @property
    def task(self) -> str:
        return self.dataset.task

    @property
    def shape(self) -> tuple[int, ...]:
        return self.dataset.shape

    @property
    def name(self) -> str:
        return self.dataset.name

    @property
    def black(self) -> tuple[float, ...] | None:
        return self.dataset.black

    def train(self, device: str) -> Shard:
        number = self._number(device)
        return self.dataset.shard(self.order[self.starts[number] : self._train_end(number)])

    def test(self, device: str) -> Shard:
        """The test set of the device, which may be empty if the device has few samples."""
        number = self._number(device)
        return self.dataset.shard(self.order[self._train_end(number) : self.starts[number + 1]])

    def central_test(self) -> Shard:
        return self.dataset.central_test()

    def size(self, device: str) -> int:
        """The number of training samples of a device, without building its shard."""
        number = self._number(device)
        return int(self._train_end(number) - self.starts[number])

    def counts(self) -> np.ndarray:
        """The number of training samples per device and class, devices × classes. Only for classification."""
        owned = np.diff(self.starts)
        device = np.repeat(np.arange(len(owned)), owned)
        training = np.arange(len(self.order)) < np.repeat(self.starts[1:] - self.held_out, owned)
        cell = device * self.classes + self.dataset.labels[self.order]
        cells = np.bincount(cell[training], minlength=len(owned) * self.classes)
        return cells.reshape(len(owned), self.classes)

    def groups_by(self, field: str) -> tuple[str, ...]:
        """The most frequent value of a field of the data set at each device; of equally frequent ones, the first.

        The field `label` is always there: the classes. A device without samples is in the group "none".
        """
        known = {"label": self.dataset.labels, **self.dataset.fields}
        if field not in known:
            raise InputError(f"data set '{self.name}' has no field '{field}'; {suggest(field, known)}")
        values, codes = np.unique(to_numpy(known[field]), return_inverse=True)
        owned = np.split(codes[self.order], self.starts[1:-1])
        return tuple(str(values[np.bincount(rows).argmax()]) if len(rows) else "none" for rows in owned)

    def test_groups(self, field: str) -> np.ndarray | None:
        """The value of a field at each sample of the central test set, as text; None if that is not known."""
        values = self.dataset.test_fields.get(field)
        return None if values is None else to_numpy(values).astype(str)

    def _train_end(self, number: int) -> int:
        return int(self.starts[number + 1] - self.held_out[number])

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {name: number for number, name in enumerate(self.devices)}

    def _number(self, device: str) -> int:
        if device not in self._numbers:
            # Only two names are compared, because finding the nearest of 100 000 names is slow.
            raise InputError(
                f"device {device!r} is not one of the {len(self.devices)} devices; "
                f"{suggest(str(device), (self.devices[0], self.devices[-1]))}"
            )
        return self._numbers[device]
