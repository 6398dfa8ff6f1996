"""Ends a run that does not get better any more."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

from undergrowth.callbacks.metric import chosen_metric, improvement_of
from undergrowth.core import InputError
from undergrowth.runs.callback import Callback, OngoingRun, Row


@dataclass(frozen=True)
class EarlyStopping(Callback):
    """Ends a run if `metric` has not improved by more than `least` in the last `patience` evaluations.

    `metric` is a figure of the history; None: the main metric of the run's task, such as the accuracy. Metrics of the
    task improve in their direction; the loss and all other figures improve downwards. The decision depends on the
    history of the run alone, so a resumed run ends after the same round.
    """

    patience: int = 5
    metric: str | None = None
    least: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.patience, bool) or not isinstance(self.patience, int) or self.patience < 1:
            raise InputError(f"EarlyStopping: patience {self.patience!r} must be a whole number, at least 1")
        if not isinstance(self.least, int | float) or not (isfinite(self.least) and self.least >= 0):
            raise InputError(f"EarlyStopping: least {self.least!r} must be a number, at least 0")

    def on_round(self, row: Row, run: OngoingRun) -> None:
        metric = chosen_metric(self.metric, run)
        best, number, without = -inf, 0, 0
        for each in filter(run.is_evaluated, run.history):
            figure = improvement_of(self, metric, each)
            if figure > best + self.least:
                best, number, without = figure, each["round"], 0
            else:
                without += 1
        if without >= self.patience:
            since = f"since round {number}, where it was {metric.improvement(best):.6g}" if number else "in any round"
            evaluations = "evaluation" if without == 1 else "evaluations"
            run.stop(f"{metric.name} has not improved {since} ({without} {evaluations})")
