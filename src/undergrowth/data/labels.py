"""Labels of the four tasks: what they must look like, and the groups of samples that partitions by class divide."""

from __future__ import annotations

from typing import Any

import numpy as np

from undergrowth.core import TASKS, InputError, suggest

QUANTILES = 10  # groups of equally many samples, by the label of a regression


def check_task_name(where: str, task: Any) -> None:
    if task not in TASKS:
        raise InputError(f"{where}: task {task!r} is not known; {suggest(str(task), TASKS)}")


def check_labels(data: str, part: str, y: np.ndarray, shape: tuple[int, ...], task: str, classes: int) -> None:
    """Raises an `InputError` if `y`, called `part`, cannot be the labels of `task`. `shape`: that of one input."""
    where = f"data set '{data}': {part}"
    wanted = {
        "classification": y.ndim == 1,
        "regression": y.ndim in (1, 2),
        "multi-label": y.ndim == 2,
        "next-token": y.ndim == 2 and y.shape[1:] == shape[:1],
    }
    if not wanted[task]:
        words = {
            "classification": "one class for each sample",
            "regression": "a number, or a row of numbers, for each sample",
            "multi-label": "a row of 0 and 1 for each sample",
            "next-token": f"a token for each of the {shape[0]} positions of each sample",
        }
        raise InputError(f"{where} has shape {tuple(y.shape)}; the task {task} needs {words[task]}")
    if task == "regression":
        _check_numbers(where, y, classes)
    elif task == "multi-label":
        _check_matrix(where, y, classes)
    else:
        _check_classes(where, y, classes, lowest=0 if task == "classification" else None)


def _check_classes(where: str, y: np.ndarray, classes: int, lowest: int | None) -> None:
    ends = f"integers from 0 to {classes - 1}" + ("" if lowest == 0 else ", or negative where there is none")
    if y.dtype.kind not in "iu":
        raise InputError(f"{where} holds {y.dtype} values; labels must be {ends}")
    bad = np.argwhere((y >= classes) if lowest is None else (y < lowest) | (y >= classes))
    if bad.size:
        at = tuple(bad[0].tolist())
        raise InputError(f"{where}[{', '.join(map(str, at))}] is {y[at]}; labels must be {ends}")


def _check_numbers(where: str, y: np.ndarray, classes: int) -> None:
    if y.dtype.kind not in "iuf":
        raise InputError(f"{where} holds {y.dtype} values; the labels of a regression must be numbers")
    columns = 1 if y.ndim == 1 else y.shape[1]
    if columns != classes:
        raise InputError(f"{where} has {columns} numbers for each sample, but classes is {classes}; they must be equal")
    with np.errstate(over="ignore"):
        bad = np.flatnonzero(~np.isfinite(y.astype(np.float32).reshape(len(y), -1)).all(1))
    if bad.size:
        raise InputError(f"{where}[{bad[0]}] is {y[bad[0]]}; every label must be finite in float32")


def _check_matrix(where: str, y: np.ndarray, classes: int) -> None:
    if y.shape[1] != classes:
        raise InputError(
            f"{where} has {y.shape[1]} labels for each sample, but classes is {classes}; they must be equal"
        )
    bad = np.argwhere((y != 0) & (y != 1))
    if bad.size:
        row, column = bad[0]
        raise InputError(f"{where}[{row}, {column}] is {y[row, column]}; the labels of multi-label must be 0 or 1")


def strata_of(y: np.ndarray, task: str) -> np.ndarray | None:
    """A group from 0 for each sample: its class, or one of ten quantiles of its number; None if there is no such group.

    The quantiles of rows of numbers are those of the first number.
    """
    if task == "classification":
        return y.astype(np.int64, copy=False)
    if task != "regression":
        return None
    numbers = y.reshape(len(y), -1)[:, 0]
    edges = np.quantile(numbers, np.arange(1, QUANTILES) / QUANTILES)
    return np.searchsorted(edges, numbers, side="right")
