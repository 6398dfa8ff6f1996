"""A data set before it is partitioned: pooled training samples and a central test set."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from operator import index
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undergrowth.core import InputError, Shard
from undergrowth.data.labels import check_labels, check_task_name, strata_of

Array = np.ndarray | Tensor

_ROWS_PER_CHECK = 4096  # rows that are checked together, so that a check needs little memory besides the data


@dataclass(frozen=True, eq=False)
class Dataset:
    """Pooled samples that a partition divides over devices.

    The type of `x` decides how it is read: uint8 values are pixels (divided by 255 when a shard is built, which keeps a
    large set small in memory), floats are features, and other integers are tokens. Images have the shape N×C×H×W,
    tokens N×T, tables N×F. `fields` are natural groupings of the training samples, such as {"writer": ids}. `mean` and
    `std`, one number per channel (the second dimension), normalise the inputs of a shard.

    `y` depends on the task: classes from 0, N; numbers to predict, N or N×K (regression); 0 or 1 for each label, N×K
    (multi-label); the next token at each position, N×T, negative where there is none (next-token). `classes` is the
    number of outputs that a model needs: classes, K, or tokens.

        Dataset("mine", x, y, test_x, test_y, classes=3, fields={"hospital": hospital_ids})
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
    notes: tuple[str, ...] = ()  # what the loader assumed; runs repeat these notes
    task: str = "classification"  # regression | multi-label | next-token
    test_fields: Mapping[str, Array] = field(default_factory=dict)  # as `fields`, of the test samples

    def __post_init__(self) -> None:
        with suppress(TypeError):  # `y.max() + 1` is an integer of numpy or torch; what is none, `check` refuses
            object.__setattr__(self, "classes", index(self.classes))

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.x.shape[1:])

    @property
    def labels(self) -> np.ndarray:
        """The training labels as an int64 array. Only for classification."""
        return to_numpy(self.y).astype(np.int64, copy=False)

    @property
    def strata(self) -> np.ndarray | None:
        """The group of each training sample that partitions by class divide: see `strata_of`."""
        return strata_of(to_numpy(self.y), self.task)

    @property
    def black(self) -> tuple[float, ...] | None:
        """The value of a black pixel in each channel of a shard; None if the inputs are not normalised."""
        if self.mean is None or self.std is None:
            return None
        return tuple(self._inputs(torch.zeros(1, len(self.mean), 1)).flatten().tolist())

    def shard(self, indices: Any) -> Shard:
        """The training samples at `indices`, as float32 tensors (int64 for tokens)."""
        indices = to_numpy(indices).astype(np.int64, copy=False)
        return self._shard(take_rows(self.x, indices), take_rows(self.y, indices))

    def central_test(self) -> Shard:
        """The central test set, built anew by each call."""
        return self._shard(self.test_x, self.test_y)

    def _shard(self, x: Array, y: Array) -> Shard:
        integers = self.task in ("classification", "next-token")
        return Shard(self._inputs(_tensor(x)), _tensor(y).to(torch.int64 if integers else torch.float32))

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
        """Raises an `InputError` that names the problem and the first bad sample if no run could use the data."""
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
                f"({self.test_x.dtype}); they must be of the same kind, or their scales would differ"
            )
        for key, values in self.fields.items():
            if not isinstance(values, Sized) or len(values) != len(self):
                found = len(values) if isinstance(values, Sized) else "no"
                raise InputError(
                    f"data set '{self.name}': field '{key}' has {found} entries for {len(self)} training samples"
                )
        for key, values in self.test_fields.items():
            if len(values) != len(self.test_y):
                raise InputError(
                    f"data set '{self.name}': test field '{key}' has {len(values)} entries for {len(self.test_y)} "
                    "test samples"
                )
        if self.class_names and len(self.class_names) != self.classes:
            raise InputError(f"data set '{self.name}': {len(self.class_names)} class names for {self.classes} classes")
        self.check_normalisation()

    def check_part(self, part: str) -> None:
        """Checks the inputs `x` or `test_x`, and their labels."""
        if isinstance(self.classes, bool) or not isinstance(self.classes, int) or self.classes < 1:
            raise InputError(
                f"data set '{self.name}': classes is {self.classes!r}; it must be a whole number of at least 1"
            )
        check_task_name(f"data set '{self.name}'", self.task)
        labels = part[:-1] + "y"
        x, y = getattr(self, part), getattr(self, labels)
        for key, values in ((part, x), (labels, y)):
            if not isinstance(values, np.ndarray | Tensor):
                raise InputError(
                    f"data set '{self.name}': {key} is a {type(values).__name__}; it must be a numpy array or a tensor"
                )
            if isinstance(values, Tensor) and (values.layout != torch.strided or values.is_meta or values.is_quantized):
                raise InputError(f"data set '{self.name}': {key} is sparse, quantised or on meta; give a dense tensor")
            if np.ma.is_masked(values):
                raise InputError(f"data set '{self.name}': {key} has masked values; fill them in, or leave samples out")
        if y.ndim < 1 or x.ndim < 2:
            raise InputError(
                f"data set '{self.name}': {part} has shape {tuple(x.shape)} and {labels} {tuple(y.shape)}; "
                "inputs need a sample dimension and at least one more, labels a sample dimension"
            )
        if len(x) != len(y):
            raise InputError(
                f"data set '{self.name}': {part} has {len(x)} samples and {labels} has {len(y)}; they must be equal"
            )
        if len(x) == 0 or 0 in x.shape:
            raise InputError(f"data set '{self.name}': {part} is empty; it needs at least one sample")
        check_labels(self.name, labels, to_numpy(y), self.shape, self.task, self.classes)
        self._check_values(part, x)

    def _check_values(self, part: str, x: Array) -> None:
        kind = to_numpy(x[:1]).dtype.kind
        if kind in "iub":
            return
        if kind != "f":
            raise InputError(f"data set '{self.name}': {part} holds {x.dtype} values; inputs must be numbers")
        for start in range(0, len(x), _ROWS_PER_CHECK):
            # In float32, which devices get: a large float64 becomes infinite there.
            with np.errstate(over="ignore"):
                block = to_numpy(x[start : start + _ROWS_PER_CHECK]).astype(np.float32, copy=False)
            finite = np.isfinite(block).reshape(len(block), -1).all(axis=1)
            if not finite.all():
                raise InputError(
                    f"data set '{self.name}': {part}[{start + int(np.argmin(finite))}] holds NaN or an infinite "
                    "number; every value must be finite in float32"
                )

    def check_normalisation(self) -> None:
        """Raises an `InputError` if `mean` and `std` do not fit the channels."""
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
    """How inputs of this type are read."""
    dtype = to_numpy(x[:1]).dtype
    return "pixels" if dtype == np.uint8 else "features" if dtype.kind in "fb" else "tokens"


def to_numpy(values: Any) -> np.ndarray:
    """An array or tensor as a numpy array, without a copy if possible."""
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
        if tensor.dtype == torch.bfloat16:  # not supported by numpy
            tensor = tensor.float()
        return tensor.numpy()
    return np.asarray(values)


def take_rows(values: Array, indices: np.ndarray) -> Array:
    if isinstance(values, Tensor):
        return values[torch.from_numpy(indices).to(values.device)]
    return np.take(values, indices, axis=0)


def _tensor(values: Array) -> Tensor:
    if isinstance(values, Tensor):
        return values
    # A copy in native byte order, because torch does not support read-only arrays, such as views of a file's bytes.
    # torch allocates it with a fixed alignment; numpy does not, and the alignment can change the last digit of a sum.
    dtype = np.dtype(np.float64) if values.dtype == np.longdouble else values.dtype.newbyteorder("=")
    return torch.tensor(np.asarray(values, dtype=dtype))
