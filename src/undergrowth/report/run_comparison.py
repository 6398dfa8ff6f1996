"""Figures of several runs for the terminal: a column per run or, where those do not fit, a row per run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from undergrowth.core import Metric
from undergrowth.exchange import ROUND_COST_KEYS, ROUND_COSTS
from undergrowth.report.run_record import RunRecord, short_labels
from undergrowth.report.tables import NO_VALUE, SHOWN_COSTS, cost_titles, needed_width, score, table

MIN_VALUE_WIDTH = 14  # of a column for a run; costs fit without being shortened
_MIN_NAME_WIDTH = 16
_GAP = 2  # between two columns
FEWER_FIGURES = "The terminal is too narrow for all figures of these runs; --json prints them."


def column_per_run(
    labels: Sequence[str], rows: Sequence[Sequence[Any]], screen: Console, title: str | None = None
) -> Table | None:
    """A table with a column per run; None if `screen` is too narrow for that.

    `rows`: the name of a figure, then its values. Long values are shortened if they do not fit otherwise.
    """
    columns, right = ["", *labels], range(1, len(labels) + 1)
    whole = table(columns, rows, title, right)
    if needed_width(screen, whole) <= screen.width:
        return whole
    names = max(len(str(row[0])) for row in rows)
    room = (screen.width - names - _GAP) // len(labels) - _GAP
    if room < MIN_VALUE_WIDTH:
        return None
    shortened = [(name, *(_shorten(value, room) for value in values)) for name, *values in rows]
    return table(columns, shortened, title, right)


def row_per_run(
    records: Sequence[RunRecord], columns: Sequence[str], rows: Sequence[Sequence[str]], screen: Console,
    title: str | None = None,
) -> Table:  # fmt: skip
    """A table with a row per run, in which two `columns` share the width of one."""
    cells = [["\n".join(each[at : at + 2]) for at in range(0, len(each), 2)] for each in (columns, *rows)]
    figures = table(cells[0], cells[1:])
    room = max(screen.width - needed_width(screen, figures) - _GAP, _MIN_NAME_WIDTH)
    named = [("run\n", *cells[0])]
    for record, label, each in zip(records, short_labels(records), cells[1:], strict=True):
        named.append((f"{_shorten(label, room)}\n{_shorten(record.run, room)}", *each))
    return table(named[0], named[1:], title, right=range(1, len(named[0])))


def total_figures(records: Sequence[RunRecord], main: Metric) -> tuple[list[str], list[list[str]]]:
    """The columns and rows of `row_per_run`: the value of `main` at the end, its best value, and the costs."""
    rows = []
    for record in records:
        rounds = f"{len(record.rounds)}" if record.done else f"{len(record.rounds)}, {record.row['status']}"
        rows.append([score(record.totals.get(main.name)), score(record.best(main)), *_costs(rounds, record.totals)])
    return [main.name, "best", *_cost_columns()], rows


def reached_figures(reached: Sequence[Mapping[str, Any] | None]) -> tuple[list[str], list[list[str]]]:
    """The same for the costs until a value is reached. `reached`: the row of that round for each run."""
    return _cost_columns(), [_costs(f"{row['round']}" if row else NO_VALUE, row or {}) for row in reached]


def _cost_columns() -> list[str]:
    return ["rounds", "time", *cost_titles(ROUND_COSTS)]


def _costs(rounds: str, found: Mapping[str, Any]) -> list[str]:
    formatted = {key: function for key, _, function in SHOWN_COSTS}
    return [rounds, *(formatted[key](found.get(key)) for key in ROUND_COST_KEYS)]


def _shorten(value: Any, width: int) -> str:
    """The text of `value` in at most `width` characters, with … in place of its middle."""
    text = NO_VALUE if value is None else str(value)
    if len(text) <= width:
        return text
    start = (width - 1) // 2
    return f"{text[:start]}…{text[len(text) - (width - 1 - start) :]}"
