"""`undergrowth list`: the runs in a folder."""

from __future__ import annotations

from typing import Any

import typer

from undergrowth.cli.output import AsJson, OutFolder, console, print_json

_MIN_WIDTH_FOR_COSTS = 105  # terminal columns; a narrower terminal gets only the first columns of the table
_NARROW_COLUMNS = 6


def _metric(row: dict[str, Any], title: str) -> str:
    """The main metric of a run, with its name unless that is the title of the column."""
    from undergrowth.report.tables import score

    value = score(row[row["metric"]])
    return value if row["metric"] == title else f"{row['metric']} {value}"


def list_runs(out: OutFolder = "runs", json: AsJson = False) -> None:
    """List the runs in a folder, newest last, with status, accuracy and costs.

    Example: undergrowth list --out experiments
    """
    from undergrowth.report.tables import count, duration, size, table
    from undergrowth.runs.listing import list_runs as list_rows

    rows = list_rows(out)
    if json:
        print_json(rows)
        return
    if not rows:
        typer.echo(f"no runs in '{out}' yet")
        return
    screen = console()
    shown_columns = _NARROW_COLUMNS if screen.width < _MIN_WIDTH_FOR_COSTS else None
    shared = {row["metric"] for row in rows}
    title = shared.pop() if len(shared) == 1 else "metric"
    columns = ("run", "status", "rounds", title, "devices", "model", "data", "sent", "simulated")
    shown = [
        (
            row["run"], row["status"], f"{row['rounds_done']}/{row['rounds']}", _metric(row, title),
            count(row["clients"]), row["model"], row["data"],
            size((row["bytes_down"] or 0) + (row["bytes_up"] or 0)), duration(row["simulated_seconds"]),
        )[:shown_columns]
        for row in rows
    ]  # fmt: skip
    screen.print(table(columns[:shown_columns], shown, right=(2, 3, 4, 7, 8)))
