"""The live display of a run: rounds, accuracy, time left. Silent when nobody watches."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from undergrowth.runs.run import Execution


class Progress:
    """A bar on standard error while a run goes on."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        )  # fmt: skip
        self._bar = Bar(*columns, console=Console(stderr=True), disable=not shown, transient=True)
        self._task = self._bar.add_task("starting", total=None, status="")

    def __enter__(self) -> Progress:
        if self.shown:  # some versions of rich print an empty line for a bar that is not
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.shown:
            self._bar.stop()

    def hooks(self) -> dict[str, Any]:
        return {"on_start": self._on_start, "on_round": self._on_round} if self.shown else {}

    def _on_start(self, execution: Execution) -> None:
        done = execution.federation.driver.root.round
        rounds = execution.experiment.train.rounds
        self._bar.update(self._task, description=execution.run, total=rounds, completed=done)

    def _on_round(self, row: Mapping[str, Any], execution: Execution) -> None:
        status = f"accuracy {row['accuracy']:.3f}"
        self._bar.update(self._task, completed=row["round"], status=status)
