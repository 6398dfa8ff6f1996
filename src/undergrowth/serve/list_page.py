"""The list of all runs of a folder."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from undergrowth.report.html import escape
from undergrowth.report.run_record import finite
from undergrowth.report.tables import duration, score
from undergrowth.runs import Store
from undergrowth.runs.listing import list_runs
from undergrowth.runs.store import FILE
from undergrowth.serve.run_state import DONE, RUNNING, run_progress
from undergrowth.serve.template import render

# Title and whether it holds numbers, which are aligned to the right and start with the largest when sorted.
COLUMNS = (
    ("run", False), ("method", False), ("data", False), ("model", False), ("seed", True), ("state", False),
    ("rounds", True), ("accuracy", True), ("simulated", True), ("started", False),
)  # fmt: skip


def list_page(folder: Path) -> str:
    """The page with the list."""
    head = "".join(_head_cell(title, numbers) for title, numbers in COLUMNS)
    every = '<th class="tick"><input type="checkbox" id="every" aria-label="tick all runs that are shown"></th>'
    main = f"""<h1>Runs</h1>
<p class="quiet">in {escape(folder.resolve())}</p>
<form action="/compare">
<div class="bar"><input type="search" id="filter" placeholder="Filter, such as: fedprox digits" aria-label="filter">
<button id="compare">Compare</button><span class="quiet" id="shown"></span></div>
<div class="scroll"><table id="runs">
<thead><tr>{every}{head}</tr></thead>
<tbody>{list_rows(folder)}</tbody>
</table></div>
</form>"""
    return render(f"Runs in {folder.resolve().name}", main, ("list.js",))


def list_rows(folder: Path) -> str:
    """The rows of the table, the newest run first."""
    if not (folder / FILE).exists():
        return _empty_row()
    rows = list_runs(folder)
    with closing(Store(folder)) as store:
        running = {row["run"]: _fraction(store, row["run"]) for row in rows if row["status"] == RUNNING}
    return "\n".join(_row(row, running.get(row["run"])) for row in reversed(rows)) or _empty_row()


def _fraction(store: Store, run: str) -> float:
    return float(run_progress(store.run(run), store.last_round(run))["fraction"])


def _empty_row() -> str:
    sentence = "No run yet. A run appears here when it starts."
    return f'<tr class="empty"><td colspan="{len(COLUMNS) + 1}">{sentence}</td></tr>'


def _head_cell(title: str, numbers: bool) -> str:
    return f'<th{_kind(numbers)}><button type="button" class="sort">{title}</button></th>'


def _method(row: dict[str, Any]) -> str:
    return ", ".join([str(row["method"]), *(f"{name} {value}" for name, value in row["options"].items())])


def _metric(row: dict[str, Any]) -> str:
    """The accuracy, or the main metric of another task with its name."""
    name, value = row["metric"], score(row[row["metric"]])
    return value if name == "accuracy" else escape(f"{name} {value}")


def _kind(numbers: bool) -> str:
    return ' class="number"' if numbers else ""


def _row(row: dict[str, Any], fraction: float | None) -> str:
    run, status = row["run"], str(row["status"])
    rounds = f"{row['rounds_done']}" if status == DONE else f"{row['rounds_done']} of {row['rounds']}"
    bar = "" if fraction is None else f'<progress value="{fraction:.4f}"></progress>'
    # Markup, and the value to sort by.
    cells = (
        (f'<a href="/runs/{quote(run, safe="")}">{escape(run)}</a>', run),
        (escape(_method(row)), _method(row)),
        *((escape(row[key]), row[key]) for key in ("data", "model", "seed")),
        (f'<span class="state {escape(status)}">{escape(status)}</span>', status),
        (escape(rounds) + bar, row["rounds_done"]),
        (_metric(row), finite(row[row["metric"]])),
        (duration(row["simulated_seconds"]), finite(row["simulated_seconds"])),
        (escape(str(row["created"])[: len("2026-01-02 10:15")]), row["created"]),
    )
    box = f'<input type="checkbox" name="run" value="{escape(run)}" aria-label="compare {escape(run)}">'
    written = "".join(
        f'<td{_kind(numbers)} data-title="{title}" data-value="{"" if value is None else escape(value)}">{markup}</td>'
        for (title, numbers), (markup, value) in zip(COLUMNS, cells, strict=True)
    )
    return f'<tr><td class="tick">{box}</td>{written}</tr>'
