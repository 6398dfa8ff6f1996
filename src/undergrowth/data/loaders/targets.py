"""Labels of tasks other than classification, for loaders of files that can hold them."""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from typing import Any

import numpy as np

from undergrowth.core import InputError
from undergrowth.data.labels import strata_of
from undergrowth.data.split import stratified_split

NO_LABEL = -1  # of positions without a next token
TASK_OPTION = "how labels are read: {}; by default the run's"


def check_task(task: Any, tasks: Collection[str], what: str) -> None:
    """Refuses a task that the files of a loader, called `what`, cannot hold the labels of."""
    if not isinstance(task, str) or task not in tasks:
        raise InputError(f"task {task!r}: {what} can have the tasks {', '.join(tasks)}")


def split_samples(y: np.ndarray, task: str, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices for training and for testing: `fraction` of every class, or of every group that `strata_of` forms."""
    strata = strata_of(y, task)
    return stratified_split(np.zeros(len(y)) if strata is None else strata, fraction, seed)


def as_targets(values: np.ndarray, task: str) -> np.ndarray:
    """Numbers to predict, or labels of 0 and 1, in float32: samples × K, or samples for a regression of one number."""
    columns = prod(values.shape[1:])  # numpy cannot find it out where there is no sample
    targets: np.ndarray = values.reshape(len(values), columns).astype(np.float32)
    return targets[:, 0] if task == "regression" and targets.shape[1] == 1 else targets


def count_targets(y: np.ndarray) -> int:
    """The number of outputs that a model of these targets needs."""
    return 1 if y.ndim == 1 else int(y.shape[1])


def next_tokens(x: np.ndarray, padding: int | None = None) -> np.ndarray:
    """For each position of the rows `x`, the token after it; `NO_LABEL` at the end and where `padding` follows."""
    y = np.full(x.shape, NO_LABEL, dtype=np.int64)
    y[:, :-1] = x[:, 1:]
    return y if padding is None else np.where(y == padding, NO_LABEL, y)
