"""The list of all runs of a folder. The runs of a sweep are together, below a row about the sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from undergrowth.report.html import escape
from undergrowth.report.run_record import finite
from undergrowth.report.tables import count, duration, named_score
from undergrowth.runs import Store
from undergrowth.runs.listing import UNREADABLE, list_runs, shared_title
from undergrowth.runs.store import FILE
from undergrowth.serve.run_state import DONE, RUNNING, run_progress
from undergrowth.serve.template import render

Row = Mapping[str, Any]

# Title and whether it holds numbers, which are aligned to the right and start with the largest when sorted.
_BEFORE_METRIC = (
    ("run", False), ("method", False), ("data", False), ("model", False), ("seed", True), ("state", False),
    ("rounds", True),
)  # fmt: skip
_AFTER_METRIC = (("simulated", True), ("started", False))
_COLUMNS = len(_BEFORE_METRIC) + 1 + len(_AFTER_METRIC)


def list_page(folder: Path) -> str:
    rows = _read(folder)
    head = "".join(_head_cell(title, numbers) for title, numbers in _columns(shared_title(rows)))
    every = '<th class="tick"><input type="checkbox" id="every" aria-label="tick all runs that are shown"></th>'
    main = f"""<h1>Runs</h1>
<p class="quiet">in {escape(folder.resolve())}</p>
<form action="/compare">
<div class="bar"><input type="search" id="filter" placeholder="Filter, such as: fedprox digits" aria-label="filter">
<button id="compare">Compare</button><span class="quiet" id="shown"></span></div>
<div class="scroll"><table id="runs">
<thead><tr>{every}{head}</tr></thead>
<tbody>{_body(folder, rows)}</tbody>
</table></div>
</form>"""
    return render(f"Runs in {folder.resolve().name}", main, ("list.js",))


def list_rows(folder: Path) -> str:
    """The rows of the table, the newest run first."""
    return _body(folder, _read(folder))


def _read(folder: Path) -> list[dict[str, Any]]:
    return list_runs(folder)[::-1] if (folder / FILE).exists() else []


def _body(folder: Path, rows: Sequence[Row]) -> str:
    if not rows:
        sentence = "No run yet. A run appears here when it starts."
        return f'<tr class="empty"><td colspan="{_COLUMNS + 1}">{sentence}</td></tr>'
    columns, sweeps = _columns(shared_title(rows)), dict[str, list[Row]]()
    for row in rows:
        if row["sweep"]:
            sweeps.setdefault(row["sweep"], []).append(row)
    with Store(folder) as store:
        running = {row["run"]: _fraction(store, row["run"]) for row in rows if row["status"] == RUNNING}
    written = []
    for row in rows:
        together = [row] if not row["sweep"] else sweeps.pop(row["sweep"], [])  # at the place of the newest
        if row["sweep"] and together:
            written.append(_sweep_row(row["sweep"], together))
        written.extend(_row(each, columns, running.get(each["run"])) for each in together)
    return "\n".join(written)


def _columns(metric: str) -> tuple[tuple[str, bool], ...]:
    return (*_BEFORE_METRIC, (metric, True), *_AFTER_METRIC)


def _fraction(store: Store, run: str) -> float:
    return float(run_progress(store.run(run), store.last_round(run))["fraction"])


def _head_cell(title: str, numbers: bool) -> str:
    return f'<th{_kind(numbers)}><button type="button" class="sort">{escape(title)}</button></th>'


def _method(row: Row) -> str:
    """The variant of a sweep, or the method with its options."""
    if row["variant"]:
        return str(row["variant"])
    return ", ".join([str(row["method"]), *(f"{name} {value}" for name, value in row["options"].items())])


def _kind(numbers: bool) -> str:
    return ' class="number"' if numbers else ""


def _sweep_row(sweep: str, rows: Sequence[Row]) -> str:
    name, states = escape(sweep), Counter(str(row["status"]) for row in rows)
    words = ", ".join(f"{number} {state}" for state, number in states.items())
    box = f'<input type="checkbox" aria-label="tick all runs of sweep {name}">'
    button = f'<button type="button" class="fold" aria-expanded="true">sweep {name}</button>'
    runs = "1 run" if len(rows) == 1 else f"{len(rows)} runs"
    about = f'<span class="quiet">{runs}: {escape(words)}</span>'
    return (
        f'<tr class="sweep" data-sweep="{name}"><td class="tick">{box}</td>'
        f'<td colspan="{_COLUMNS}">{button} {about}</td></tr>'
    )


def _row(row: Row, columns: Sequence[tuple[str, bool]], fraction: float | None) -> str:
    run, status = row["run"], str(row["status"])
    done = count(row["rounds_done"])
    rounds = done if status == DONE else f"{done} of {row['rounds']}"
    bar = "" if fraction is None else f'<progress value="{fraction:.4f}"></progress>'
    problem = f'<p class="problem">{escape(row["problem"])}</p>' if row["problem"] else ""
    metric = columns[len(_BEFORE_METRIC)][0]
    # Markup, and the value to sort by.
    cells = (
        (f'<a href="/runs/{quote(run, safe="")}">{escape(run)}</a>', run),
        (escape(_method(row)), _method(row)),
        *((escape(row[key]), row[key]) for key in ("data", "model", "seed")),
        (f'<span class="state {escape(status)}">{escape(status)}</span>{problem}', status),
        (escape(rounds) + bar, row["rounds_done"]),
        (escape(named_score(row, metric)), finite(row.get(row["metric"]))),
        (duration(row["simulated_seconds"]), finite(row["simulated_seconds"])),
        (escape(str(row["created"])[: len("2026-01-02 10:15")]), row["created"]),
    )
    box = f'<input type="checkbox" name="run" value="{escape(run)}" aria-label="compare {escape(run)}">'
    written = "".join(
        f'<td{_kind(numbers)} data-title="{escape(title)}" data-value="{"" if value is None else escape(value)}">'
        f"{markup}</td>"
        for (title, numbers), (markup, value) in zip(columns, cells, strict=True)
    )
    member = f' data-sweep="{escape(row["sweep"])}"' if row["sweep"] else ""
    return f'<tr{member}><td class="tick">{"" if status == UNREADABLE else box}</td>{written}</tr>'
