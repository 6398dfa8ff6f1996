"""Figures of the history that callbacks compare."""

from __future__ import annotations

from math import inf
from typing import Any

from undergrowth.core import InputError, suggest
from undergrowth.runs.callback import Row


def improvement_of(owner: object, metric: str, row: Row) -> float:
    """The figure of the row, with the sign changed if less is better: a loss, or a cost. NaN is worse than any other.

    `owner`: the callback that uses the figure, for messages.
    """
    value: Any = row.get(metric)
    if isinstance(value, bool) or not isinstance(value, int | float):
        known = [name for name, each in row.items() if isinstance(each, int | float)]
        name = type(owner).__name__
        raise InputError(f"{name}: metric {metric!r} is not a figure of the history; {suggest(str(metric), known)}")
    if value != value:
        return -inf
    return float(value) if metric.partition("/")[0] == "accuracy" else -float(value)
