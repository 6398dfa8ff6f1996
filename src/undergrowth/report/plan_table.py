"""The table of a plan for the terminal, for wide and for narrow ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.table import Table

from undergrowth.report.plan_page import COLUMNS, row_cells
from undergrowth.report.tables import count, table
from undergrowth.runs.planning import Row, takes_part

# The second line of a row has the training's memory, the upload, the energy, and how many devices can take part.
_NARROW = ("method, device class", "time", "memory", "traffic", "work", "take part")


def wide_table(rows: Sequence[Row]) -> Table:
    """One line per method and class of devices."""
    blank = [""] * (len(COLUMNS) - 4)
    shown: list[Sequence[Any]] = []
    for name, members, total, together in _by_method(rows):
        shown += [(name if place == 0 else "", *row_cells(row)) for place, row in enumerate(members)]
        shown += [("", "together", total, *blank, together), ("",) * len(COLUMNS)]
    return table(COLUMNS, shown[:-1], right=(*range(2, len(COLUMNS) - 2), len(COLUMNS) - 1))


def narrow_table(rows: Sequence[Row]) -> Table:
    """Two lines per class of devices, below a line with the name of the method. Figures are never cut or wrapped."""
    shown: list[Sequence[Any]] = []
    for name, members, _, together in _by_method(rows):
        shown.append((name, *[""] * (len(_NARROW) - 2), together))
        for device, _, time, runtime, training, down, up, *work, verdict, fitting in map(row_cells, members):
            memory, traffic = f"{runtime}\n+ {training}", f"↓ {down}\n↑ {up}"
            shown.append((f"  {device}", time, memory, traffic, "\n".join(work), f"{verdict}\n{fitting}"))
    return table(_NARROW, shown, right=range(1, len(_NARROW)))


def _by_method(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row], str, str]]:
    """The method, its rows, the number of its devices, and how many of them can take part."""
    able = takes_part(rows)
    for name, group in groupby(rows, key=lambda row: row["method"]):
        members = list(group)
        total = count(sum(row["devices"] for row in members))
        yield name, members, total, f"{count(able[name])} of {total}"
