"""Labels of tasks other than classification: what is refused, and how partitions divide such data."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.samples import table
from undergrowth.core import InputError
from undergrowth.data import Dataset, draw_public, hide_labels, load, partition_dataset
from undergrowth.data.labels import strata_of

NUMBERS = np.linspace(-3, 5, 60)


def regression(**changes: Any) -> Dataset:
    return table(**{"y": NUMBERS, "test_y": NUMBERS[:4], "classes": 1, "task": "regression", **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "ranking"}, "task 'ranking' is not known"),
        ({"task": "multi-label"}, r"y has shape (60,); the task multi-label needs a row of 0 and 1 for each sample"),
        ({"task": "next-token"}, r"the task next-token needs a token for each of the 1 positions of each sample"),
        ({"task": "classification"}, "y holds float64 values; labels must be integers from 0 to 0"),
        ({"classes": 2}, "y has 1 numbers for each sample, but classes is 2"),
        ({"y": np.where(NUMBERS > 4, np.nan, NUMBERS)}, "y[52] is nan; every label must be finite in float32"),
        ({"y": NUMBERS.astype(str)}, "the labels of a regression must be numbers"),
        ({"y": np.full((60, 1), 2), "task": "multi-label"}, "y[0, 0] is 2; the labels of multi-label must be 0 or 1"),
        ({"y": np.zeros((60, 2)), "task": "multi-label"}, "y has 2 labels for each sample, but classes is 1"),
        (
            {"y": np.ones((60, 1), int), "task": "next-token"},
            "y[0, 0] is 1; labels must be integers from 0 to 0, or neg",
        ),
    ],
)
def test_wrong_labels_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        regression(**changes).check()


def test_shards_have_the_labels_of_the_task() -> None:
    numbers = regression().shard([0, 59])
    assert numbers.y.dtype == torch.float32 and numbers.y.tolist() == [-3, 5]
    hidden = hide_labels(numbers)
    assert hidden.y.isnan().all() and hidden.y.shape == (2,)


def test_a_regression_is_divided_by_ten_quantiles_of_its_label() -> None:
    strata = strata_of(NUMBERS, "regression")
    assert strata is not None and np.bincount(strata).tolist() == [6] * 10 and (np.diff(strata) >= 0).all()
    held = partition_dataset(regression(), "classes:1", 5, seed=0, holdout=0)
    for device in held.devices:
        values = held.train(device).y
        assert values.max() - values.min() < 1.0  # of one quantile
    assert sum(held.size(device) for device in held.devices) == 30
    with pytest.raises(InputError, match="K must be from 1 to 10"):
        partition_dataset(regression(), "classes:11", 5, seed=0)


def test_tasks_without_classes_refuse_partitions_by_class() -> None:
    data = table(y=np.eye(2, dtype=int)[np.arange(60) % 2], test_y=np.zeros((4, 2)), classes=2, task="multi-label")
    with pytest.raises(InputError, match="is for the task multi-label, which has no classes; choose iid or quantity"):
        partition_dataset(data, "dirichlet:0.1", 4, seed=0)
    assert partition_dataset(data, "quantity:1.0", 4, seed=0).train("device-000").y.shape[1] == 2
    with pytest.raises(InputError, match=re.escape("public.missing [1]: data set 'table' is for multi-label")):
        draw_public(data, 0.5, None, [1], seed=0)


def test_diabetes_comes_with_scikit_learn() -> None:
    data = load("diabetes")
    assert (data.shape, data.classes, data.task, len(data), len(data.test_y)) == ((10,), 1, "regression", 352, 90)
    assert np.asarray(data.y).mean() == pytest.approx(0, abs=1e-6) and np.asarray(data.y).std() == pytest.approx(1)
