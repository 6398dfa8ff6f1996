"""How far runs are: what decides whether a page about them is still up to date."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undergrowth.core import InputError
from undergrowth.report.html import escape
from undergrowth.report.tables import count
from undergrowth.runs import Store
from undergrowth.runs.stored_experiment import stored_experiment

RUNNING, DONE = "running", "done"


@dataclass(frozen=True)
class RunState:
    """How far a run is."""

    run: str
    status: str
    round: int
    wall_seconds: float  # of the last round: a round that is computed again after a crash has another one
    notes: int
    fraction: float | None = None  # of a running run
    rounds: int | None = None  # of a running run without other limits

    @property
    def sentence(self) -> str:
        if not self.round:
            return "no round is finished yet"
        if self.rounds:
            return f"round {count(self.round)} of {count(self.rounds)}"
        return f"round {count(self.round)}, {self.fraction:.0%} of a limit is used"


def read_states(folder: Path, names: Sequence[str]) -> list[RunState]:
    """The states of the runs that `names` identify, without duplicates. Raises `InputError` if there is no such run."""
    with Store(folder) as store:
        return [_state(store, run) for run in dict.fromkeys(store.find(name) for name in names)]


def _state(store: Store, run: str) -> RunState:
    row, last = store.run(run), store.last_round(run)
    progress = run_progress(row, last) if row["status"] == RUNNING else {}
    return RunState(
        run, row["status"], last.get("round", 0), last.get("wall_seconds", 0.0), len(row["notes"]), **progress
    )


def run_progress(row: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
    """The fraction of a running run that is done and, if rounds are its only limit, their number.

    `row` is the run in the store, `last` the last row of its history.
    """
    try:
        experiment = stored_experiment(row)
    except InputError:  # another version of the package runs it, or an object of the user that is not found here
        return {"fraction": last.get("round", 0) / row["rounds"]}
    fraction = experiment.stop.fraction_done(last, experiment.max_rounds) if last else 0.0
    return {"fraction": fraction, "rounds": None if experiment.stop.given else experiment.max_rounds}


def version(states: Sequence[RunState]) -> str:
    """A short text that changes when one of the runs does."""
    return hashlib.sha256(repr(tuple(states)).encode("utf-8")).hexdigest()[:16]


def progress_markup(states: Sequence[RunState]) -> str:
    """A bar, and in words how far the running ones of some runs are; empty if none is running."""
    running = [state for state in states if state.status == RUNNING]
    if not running:
        return ""
    fraction = sum(state.fraction or 0.0 for state in running) / len(running)
    words = running[0].sentence if len(states) == 1 else f"{len(running)} of {len(states)} runs"
    return f'<span>running: {escape(words)}</span><progress value="{fraction:.4f}"></progress>'
