"""A data set before it is spread over devices: pooled training samples and a central test set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undergrowth.core.errors import InputError
from undergrowth.core.shard import Shard

Array = np.ndarray | Tensor

# Rows looked at together when the values are checked, so that a check needs little memory beside the data.
_ROWS = 4096


@dataclass(frozen=True, eq=False)
class Dataset:
    """Pooled samples that a partition spreads over devices.

    The type of `x` says what it holds: uint8 is pixels (divided by 255 when a shard is made, so that a big set stays
    small in memory), floats are features, any other integers are tokens. Images are N×C×H×W, tokens N×T, tables N×F.
    `fields` are natural groupings of the training samples, such as {"writer": ids}. `mean` and `std`, one number per
    channel (the second dimension), normalise what a shard holds.

        Dataset("mine", x, y, test_x, test_y, classes=3, fields={"hospital": where_from})
    """

    name: str
    x: Array
    y: Array
    test_x: Array
    test_y: Array
    classes: int
    class_names: tuple[str, ...] = ()
    fields: Mapping[str, Array] = field(default_factory=dict)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.x.shape[1:])

    @property
    def labels(self) -> np.ndarray:
        """The training labels as an int64 array."""
        return to_numpy(self.y).astype(np.int64, copy=False)

    @property
    def missing_classes(self) -> tuple[int, ...]:
        """The classes that no training sample has: allowed, but worth a warning."""
        there = np.bincount(self.labels, minlength=self.classes)
        return tuple(np.flatnonzero(there == 0).tolist())

    def shard(self, index: Any) -> Shard:
        """The training samples with these positions, as float32 (or int64 token) tensors."""
        where = to_numpy(index).astype(np.int64, copy=False)
        return self._shard(rows(self.x, where), rows(self.y, where))

    def central_test(self) -> Shard:
        """The whole central test set, made anew at each call."""
        return self._shard(self.test_x, self.test_y)

    def _shard(self, x: Array, y: Array) -> Shard:
        return Shard(self._inputs(_tensor(x)), _tensor(y).to(torch.int64))

    def _inputs(self, x: Tensor) -> Tensor:
        if x.dtype == torch.uint8:
            x = x.to(torch.float32).div_(255)
        elif x.dtype.is_floating_point or x.dtype == torch.bool:
            x = x.to(torch.float32)
        else:
            return x.to(torch.int64)
        if self.mean is None or self.std is None:
            return x
        per_channel = (-1,) + (1,) * (x.ndim - 2)
        mean = torch.tensor(self.mean, device=x.device).view(per_channel)
        std = torch.tensor(self.std, device=x.device).view(per_channel)
        return (x - mean).div_(std)

    def check(self) -> None:
        """Refuse data that no run could use, naming what is wrong and the first bad sample."""
        for part in ("x", "test_x"):
            self.check_part(part)
        if tuple(self.test_x.shape[1:]) != self.shape:
            raise InputError(
                f"data set '{self.name}': one test input has shape {tuple(self.test_x.shape[1:])}, "
                f"one training input {self.shape}; they must be equal"
            )
        if _kind(self.test_x) != _kind(self.x):
            raise InputError(
                f"data set '{self.name}': x holds {_kind(self.x)} ({self.x.dtype}) and test_x {_kind(self.test_x)} "
                f"({self.test_x.dtype}); they must be of one kind, or their scales would differ"
            )
        for key, values in self.fields.items():
            if len(values) != len(self):
                raise InputError(
                    f"data set '{self.name}': field '{key}' has {len(values)} entries for {len(self)} training samples"
                )
        if self.class_names and len(self.class_names) != self.classes:
            raise InputError(f"data set '{self.name}': {len(self.class_names)} class names for {self.classes} classes")
        self._check_normalisation()

    def check_part(self, part: str) -> None:
        """Refuse what is wrong with the inputs x or test_x, or with their labels."""
        if isinstance(self.classes, bool) or not isinstance(self.classes, int) or self.classes < 1:
            raise InputError(f"data set '{self.name}': classes is {self.classes!r}; it must be a positive integer")
        labels = part[:-1] + "y"
        x, y = getattr(self, part), getattr(self, labels)
        for key, values in ((part, x), (labels, y)):
            if not isinstance(values, np.ndarray | Tensor):
                raise InputError(
                    f"data set '{self.name}': {key} is a {type(values).__name__}; it must be a numpy array or a tensor"
                )
        if y.ndim != 1 or x.ndim < 2:
            raise InputError(
                f"data set '{self.name}': {part} has shape {tuple(x.shape)} and {labels} {tuple(y.shape)}; "
                "inputs need a sample dimension and at least one more, labels only the sample dimension"
            )
        if len(x) != len(y):
            raise InputError(
                f"data set '{self.name}': {part} has {len(x)} samples and {labels} has {len(y)}; they must be equal"
            )
        if len(x) == 0 or 0 in x.shape:
            raise InputError(f"data set '{self.name}': {part} is empty; it needs at least one sample")
        self._check_labels(labels, to_numpy(y))
        self._check_values(part, x)

    def _check_labels(self, part: str, y: np.ndarray) -> None:
        if y.dtype.kind not in "iu":
            raise InputError(
                f"data set '{self.name}': {part} holds {y.dtype} values; labels must be integers "
                f"from 0 to {self.classes - 1}"
            )
        bad = np.flatnonzero((y < 0) | (y >= self.classes))
        if bad.size:
            raise InputError(
                f"data set '{self.name}': {part}[{bad[0]}] is {y[bad[0]]}; labels must be integers "
                f"from 0 to {self.classes - 1}"
            )

    def _check_values(self, part: str, x: Array) -> None:
        kind = to_numpy(x[:1]).dtype.kind
        if kind in "iub":
            return
        if kind != "f":
            raise InputError(f"data set '{self.name}': {part} holds {x.dtype} values; inputs must be numbers")
        for start in range(0, len(x), _ROWS):
            # What counts is what a device gets: float32, where a large float64 becomes infinite.
            with np.errstate(over="ignore"):
                some = to_numpy(x[start : start + _ROWS]).astype(np.float32, copy=False)
            finite = np.isfinite(some).reshape(len(some), -1).all(axis=1)
            if not finite.all():
                raise InputError(
                    f"data set '{self.name}': {part}[{start + int(np.argmin(finite))}] holds NaN or an infinite "
                    "number; every value must be finite in float32"
                )

    def _check_normalisation(self) -> None:
        if self.mean is None and self.std is None:
            return
        for key, values in (("mean", self.mean), ("std", self.std)):
            if values is None or len(values) != self.shape[0]:
                raise InputError(
                    f"data set '{self.name}': {key} is {values!r}; mean and std need one number for each "
                    f"of the {self.shape[0]} channels, or both None"
                )
            if not np.isfinite(values).all() or (key == "std" and min(values) <= 0):
                raise InputError(f"data set '{self.name}': {key} is {values!r}; mean must be finite and std positive")


def _kind(x: Array) -> str:
    """What inputs of this type are taken for."""
    dtype = to_numpy(x[:1]).dtype
    return "pixels" if dtype == np.uint8 else "features" if dtype.kind in "fb" else "tokens"


def to_numpy(values: Any) -> np.ndarray:
    """An array of any kind as numpy's, without a copy where none is needed."""
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
        if tensor.dtype == torch.bfloat16:  # which numpy does not have
            tensor = tensor.float()
        return tensor.numpy()
    return np.asarray(values)


def rows(values: Array, where: np.ndarray) -> Array:
    """Those at these positions."""
    if isinstance(values, Tensor):
        return values[torch.from_numpy(where).to(values.device)]
    return np.take(values, where, axis=0)


def _tensor(values: Array) -> Tensor:
    if isinstance(values, Tensor):
        return values
    # A copy in native byte order: arrays over a file's bytes are read-only, which torch cannot express. And one in
    # torch's memory: numpy's begins anywhere, and where values begin can change the last digit of a sum.
    return torch.tensor(np.asarray(values, dtype=values.dtype.newbyteorder("=")))
