"""The section `stop`: limits of a run. The first one that is reached ends the run after the round that reaches it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from undergrowth.core import InputError, Metric, TaskKind
from undergrowth.runs.fields import Above0, Count, FractionAbove0, Number, Whole
from undergrowth.runs.sections import Section

ROUNDS, NOBODY, CALLBACK = "rounds", "no device", "callback"  # reasons for the end of a run besides the limits below
DEFAULT_MAX_ROUNDS = 10_000  # of a run with another limit and without a number of rounds; no run goes on for ever

# What a run has used of each budget after a row of its history. Bytes are those of both directions.
BUDGETS: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "simulated_seconds": lambda row: row["simulated_seconds"],
    "bytes": lambda row: row["bytes_down"] + row["bytes_up"],
    "joules": lambda row: row["joules"],
}

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def _parse_bytes(value: Any) -> Any:
    """A text such as 1.5GB as a number of bytes. Other values are left to the validation of the number."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([a-z]*)", value.strip().lower())
    if not found or found[2] not in _UNITS:
        raise ValueError("should be a number of bytes, such as 500kB, 20MB or 1.5GB")
    return round(float(found[1]) * _UNITS[found[2]])


ByteCount = Annotated[Whole, Field(ge=1, lt=2**63), BeforeValidator(_parse_bytes)]


class StopSection(Section):
    """Limits of a run; None: no such limit."""

    simulated_seconds: Above0 | None = None
    bytes: ByteCount | None = None
    joules: Above0 | None = None
    accuracy: FractionAbove0 | None = None
    metric: Number | None = None  # the main metric of the task, which may have to be at least or at most this
    rounds: Count | None = None

    @property
    def given(self) -> bool:
        return any(getattr(self, name) is not None for name in type(self).model_fields)

    def fractions(self, row: Mapping[str, Any]) -> dict[str, float]:
        """The fraction of each budget that is used after a row of the history."""
        limits = {name: getattr(self, name) for name in BUDGETS}
        return {name: BUDGETS[name](row) / limit for name, limit in limits.items() if limit is not None}

    def fraction_done(self, row: Mapping[str, Any], max_rounds: int) -> float:
        """How much of a run is done after a row of its history, by its rounds and budgets."""
        rounds: float = row["round"] / max_rounds
        return min(1.0, max([rounds, *self.fractions(row).values()]))

    def exhausted(self, row: Mapping[str, Any]) -> str | None:
        """The first budget that is used up after a row of the history, or `NOBODY`; None if the run can go on."""
        used_up = next((name for name, fraction in self.fractions(row).items() if fraction >= 1), None)
        if used_up is None and self.given and not any(row[each] for each in ("arrived", "lost", "refused", "late")):
            return NOBODY  # nothing that takes time happens any more, so no budget would ever be used up
        return used_up

    def check(self, kind: TaskKind) -> None:
        """Refuses a limit of the accuracy if the task has none."""
        if self.accuracy is not None and not any(each.name == "accuracy" for each in kind.metrics):
            main = kind.metric.name
            raise InputError(
                f"stop.accuracy {self.accuracy:g}: {kind.name} has no accuracy; write stop.metric ({main})"
            )

    def reason_to_end(self, row: Mapping[str, Any], metric: Metric) -> str | None:
        """Why a run ends after a row of its history, other than by its number of rounds; None if it goes on.

        metric: the main one of the run's task.
        """
        if self.metric is not None and metric.reaches(row[metric.name], self.metric):
            return "metric"
        if self.accuracy is not None and row["accuracy"] >= self.accuracy:
            return "accuracy"
        return self.exhausted(row)

    def describe(self, reason: str, row: Mapping[str, Any], metric: Metric) -> str:
        """A sentence about the end of a run after a row of its history."""
        stopped = f"stopped after round {row['round']}"
        if reason == ROUNDS:
            return f"{stopped}: no other limit in the section stop was reached before the last round"
        if reason == NOBODY:
            return f"{stopped}: no device could be asked, and no limit in the section stop was reached"
        name = metric.name if reason == "metric" else reason
        value = BUDGETS[reason](row) if reason in BUDGETS else row[name]
        return f"{stopped}: {name} {_number(value)}, and stop.{reason} is {_number(getattr(self, reason))}"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
