"""The progress of a run on standard error: a bar on a terminal, or else a line a round."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from undergrowth.runs.execution import Execution

SECONDS_BETWEEN_LINES = 1.0


def is_terminal() -> bool:
    """Whether standard error is one. What a notebook puts there need not have the function `isatty`."""
    return bool(getattr(sys.stderr, "isatty", bool)())


@contextmanager
def show_progress(shown: bool = True) -> Iterator[dict[str, Any]]:
    """Yields the hooks for `start` and `resume` that show how a run goes on; none unless `shown`."""
    if not shown or sys.stderr is None:  # a program without a console has none
        yield {}
    elif is_terminal():
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        )  # fmt: skip
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            yield _hooks(ProgressBar(bar))
    else:
        yield _hooks(ProgressLines())


class ProgressBar:
    """Rounds, accuracy and remaining time in a bar that disappears at the end."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=None, status="")

    def on_start(self, execution: Execution) -> None:
        done = execution.federation.driver.root.round
        self._bar.update(self._task, description=execution.run, total=execution.experiment.max_rounds, completed=done)

    def on_round(self, row: Mapping[str, Any], execution: Execution) -> None:
        self._bar.update(self._task, completed=row["round"], total=_expected_rounds(row, execution))
        if execution.is_evaluated(row):
            name = execution.metric.name
            self._bar.update(self._task, status=f"{name} {row[name]:.3f} after round {row['round']}")

    def on_phase(self, step: str, done: int, rounds: int) -> None:
        self._bar.update(self._task, description=step, total=rounds, completed=done, status="")


class ProgressLines:
    """A line for every round, but at most one a second. The first and the last round always have one.

    A round that was not evaluated has no figures of the model in its line.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, seconds_between: float = SECONDS_BETWEEN_LINES
    ) -> None:
        self._clock = clock
        self._seconds_between = seconds_between
        self._next = clock()

    def on_start(self, execution: Execution) -> None:
        """Nothing: the first line has the id of the run."""

    def on_round(self, row: Mapping[str, Any], execution: Execution) -> None:
        done = execution.federation.driver.root.done
        expected = row["round"] if done else _expected_rounds(row, execution)
        name = execution.metric.name
        scores = f"{name} {row[name]:.3f}, loss {row['loss']:.3f}, " if execution.is_evaluated(row) else ""
        line = f"{execution.run}: round {row['round']} of {expected}, {scores}{row['wall_seconds']:.0f} s"
        self._print(line, always=done)

    def on_phase(self, step: str, done: int, rounds: int) -> None:
        if done:
            self._print(f"{step}: round {done} of {rounds}", always=done == rounds)

    def _print(self, line: str, always: bool) -> None:
        now = self._clock()
        if always or now >= self._next:
            self._next = now + self._seconds_between
            with suppress(OSError):  # nobody reads the lines any more, or the disk of their file is full
                print(line, file=sys.stderr, flush=True)


def _hooks(display: ProgressBar | ProgressLines) -> dict[str, Any]:
    return {"on_start": display.on_start, "on_round": display.on_round, "on_phase": display.on_phase}


def _expected_rounds(row: Mapping[str, Any], execution: Execution) -> int:
    """The rounds that the run will have. A budget may end it earlier: then about as many as use it up at this rate."""
    number = int(row["round"])
    return max(number, round(number / execution.fraction(row)))
