"""Figures of the history that callbacks compare."""

from __future__ import annotations

from math import inf
from typing import Any

from undergrowth.core import InputError, Metric, suggest
from undergrowth.runs.callback import OngoingRun, Row


def chosen_metric(name: str | None, run: OngoingRun) -> Metric:
    """The figure called `name`, or the main metric of the run's task."""
    return run.metric if name is None else run.metric_named(str(name))  # no figure has any other name


def improvement_of(owner: object, metric: Metric, row: Row) -> float:
    """The figure of the row, with the sign changed if less is better: a loss, or a cost. NaN is worse than any other.

    `owner`: the callback that uses the figure, for messages.
    """
    value: Any = row.get(metric.name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        known = [name for name, each in row.items() if isinstance(each, int | float)]
        name = type(owner).__name__
        raise InputError(
            f"{name}: metric {metric.name!r} is not a figure of the history; {suggest(str(metric.name), known)}"
        )
    if value != value:
        return -inf
    return metric.improvement(float(value))
