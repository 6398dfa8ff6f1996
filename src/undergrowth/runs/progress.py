"""The progress bar of a run: rounds, accuracy, remaining time."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from undergrowth.runs.execution import Execution


class Progress:
    """A progress bar on standard error. Prints nothing unless `shown`."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        )  # fmt: skip
        self._bar = Bar(*columns, console=Console(stderr=True), disable=not shown, transient=True)
        self._task = self._bar.add_task("starting", total=None, status="")

    def __enter__(self) -> Progress:
        if self.shown:  # some versions of rich print an empty line for a disabled bar
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.shown:
            self._bar.stop()

    def hooks(self) -> dict[str, Any]:
        """The callbacks for `start` and `resume`."""
        if not self.shown:
            return {}
        return {"on_start": self._on_start, "on_round": self._on_round, "on_phase": self._on_phase}

    def _on_start(self, execution: Execution) -> None:
        done = execution.federation.driver.root.round
        rounds = execution.experiment.max_rounds
        self._bar.update(self._task, description=execution.run, total=rounds, completed=done)

    def _on_round(self, row: Mapping[str, Any], execution: Execution) -> None:
        status = f"accuracy {row['accuracy']:.3f}"
        # A budget may end the run earlier: about as many rounds as at this rate use it up.
        expected = max(row["round"], round(row["round"] / execution.fraction(row)))
        self._bar.update(self._task, completed=row["round"], total=expected, status=status)

    def _on_phase(self, step: str, done: int, rounds: int) -> None:
        self._bar.update(self._task, description=step, total=rounds, completed=done, status="")
