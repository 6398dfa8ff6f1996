"""Data sets: the content of a shard, and which data is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from undergrowth.core.errors import InputError
from undergrowth.data.dataset import Dataset
from undergrowth.data.partition import partition_dataset

from .samples import table


def images(x: object, **changes: object) -> Dataset:
    y = np.arange(len(x)) % 2  # type: ignore[arg-type]
    return Dataset("pictures", x, y, x, y, 2, **changes)  # type: ignore[arg-type]


def test_pixels_become_normalised_floats() -> None:
    x = np.full((4, 2, 3, 3), 255, dtype=np.uint8)
    x.setflags(write=False)  # as arrays over a file's bytes are
    dataset = images(x, mean=(0.5, 0.0), std=(0.5, 2.0))
    dataset.check()
    shard = dataset.shard(np.array([2, 0]))
    assert shard.x.dtype == torch.float32 and shard.y.dtype == torch.int64
    assert shard.x.shape == (2, 2, 3, 3) and dataset.shape == (2, 3, 3)
    assert shard.x[:, 0].eq(1.0).all() and shard.x[:, 1].eq(0.5).all()
    assert len(dataset.central_test()) == 4


def test_tensors_are_accepted_and_not_changed() -> None:
    x = torch.rand(4, 3, 2, 2)
    before = x.clone()
    dataset = images(x, mean=(0.5,) * 3, std=(0.5,) * 3)
    dataset.check()
    dataset.central_test()
    assert torch.equal(dataset.shard([1]).x, (before[1:2] - 0.5) / 0.5)
    assert torch.equal(x, before)


@pytest.mark.parametrize("kind", [np.float32, np.uint8, np.int64, ">f4"])
def test_shards_have_the_alignment_of_torch(kind) -> None:
    """numpy aligns arrays to 16 bytes only, and the alignment can change the last digit of a sum."""
    everything = np.ones((40, 3), kind)
    data = Dataset("mine", everything, np.zeros(40, np.int64), everything, np.zeros(40, np.int64), classes=1)
    for size in range(1, 30):
        shard = data.shard(np.arange(size))
        assert shard.x.data_ptr() % 64 == 0 and shard.y.data_ptr() % 64 == 0


def test_tokens_stay_integers() -> None:
    x = np.arange(12, dtype=np.int8).reshape(4, 3)
    shard = images(x).shard([3])
    assert shard.x.dtype == torch.int64 and shard.x.tolist() == [[9, 10, 11]]


def test_large_endian_and_half_precision_arrays() -> None:
    assert images(np.ones((2, 3), dtype=">f8")).shard([0]).x.dtype == torch.float32
    halves = images(torch.ones(2, 3, dtype=torch.bfloat16))
    halves.check()
    assert halves.shard([0]).x.dtype == torch.float32


def test_a_missing_class_is_allowed() -> None:
    found = table(classes=5, y=np.full(60, 3))
    found.check()
    assert partition_dataset(found, "dirichlet:0.5", 3, 0).classes == 5


def with_value(value: float) -> np.ndarray:
    x = np.zeros((60, 1))
    x[41] = value
    return x


@pytest.mark.parametrize("classes", [np.int64(5), torch.tensor(5)])
def test_the_number_of_classes_may_come_from_the_labels(classes: object) -> None:
    data = table(classes=classes)  # type: ignore[arg-type]
    data.check()
    assert type(data.classes) is int


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x": with_value(np.nan)}, r"x\[41\] holds NaN"),
        ({"x": with_value(np.inf)}, r"x\[41\] holds NaN or an infinite"),
        ({"x": with_value(1e300)}, r"x\[41\]"),
        ({"test_x": np.full((4, 1), np.nan)}, r"test_x\[0\]"),
        ({"y": np.full(60, 5)}, r"y\[0\] is 5; labels must be integers from 0 to 4"),
        ({"y": np.arange(60) % 5 - (np.arange(60) == 7) * 9}, r"y\[7\] is -7"),
        ({"y": np.zeros(60)}, "float64 values; labels must be integers"),
        ({"test_y": np.full(4, 9)}, r"test_y\[0\] is 9"),
        ({"y": np.zeros(59, dtype=int)}, "60 samples and y has 59"),
        ({"x": np.zeros((0, 1)), "y": np.zeros(0, dtype=int)}, "x is empty"),
        ({"test_x": np.zeros((0, 1)), "test_y": np.zeros(0, dtype=int)}, "test_x is empty"),
        ({"x": np.zeros(60)}, "at least one more"),
        ({"x": np.full((60, 1), "a")}, "inputs must be numbers"),
        ({"x": [[1.0]]}, "x is a list"),
        ({"x": np.ma.masked_greater(np.arange(60.0)[:, None], 50)}, "x has masked values; fill them in"),
        ({"x": torch.zeros(60, 1).to_sparse()}, "x is sparse, quantised or on meta"),
        ({"x": torch.zeros(60, 1, device="meta")}, "x is sparse, quantised or on meta"),
        ({"classes": np.float64(5)}, "classes is np.float64"),
        ({"fields": {"user": 3}}, "field 'user' has no entries"),
        ({"test_x": np.zeros((4, 2))}, r"shape \(2,\)"),
        ({"classes": 0}, "classes is 0"),
        ({"class_names": ("a",)}, "1 class names for 5"),
        ({"fields": {"user": np.zeros(3)}}, "field 'user' has 3"),
        ({"mean": (0.0,)}, "std is None"),
        ({"mean": (0.0, 1.0), "std": (1.0, 1.0)}, "one number for each of the 1"),
        ({"mean": (0.0,), "std": (0.0,)}, "std positive"),
    ],
)
def test_bad_data_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        table(**changes).check()  # type: ignore[arg-type]
