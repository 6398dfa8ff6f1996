"""`undergrowth list`: the runs in a folder."""

from __future__ import annotations

from typing import Any

import typer

from undergrowth.cli.output import AsJson, OutFolder, console, print_json

_MIN_WIDTH_FOR_COSTS = 105  # terminal columns; a narrower terminal gets only the first columns of the table
_NARROW_COLUMNS = 6


def _rounds(row: dict[str, Any]) -> str:
    """The finished rounds and the planned ones, unless a limit of the run ended it before these."""
    from undergrowth.report.tables import count

    done = count(row["rounds_done"])
    return done if row["status"] == "done" and row["rounds_done"] != row["rounds"] else f"{done}/{row['rounds']}"


def list_runs(out: OutFolder = "runs", json: AsJson = False) -> None:
    """List the runs in a folder, newest last, with status, accuracy and costs.

    Example: undergrowth list --out experiments
    """
    from undergrowth.report.tables import count, duration, named_score, size, table
    from undergrowth.runs.listing import list_runs as list_rows
    from undergrowth.runs.listing import shared_title

    rows = list_rows(out)
    if json:
        print_json(rows)
        return
    if not rows:
        typer.echo(f"no runs in '{out}' yet")
        return
    screen = console()
    shown_columns = _NARROW_COLUMNS if screen.width < _MIN_WIDTH_FOR_COSTS else None
    title = shared_title(rows)
    columns = ("run", "status", "rounds", title, "devices", "model", "data", "sent", "simulated")
    shown = [
        (
            row["run"], row["status"], _rounds(row), named_score(row, title),
            count(row["clients"]), row["model"], row["data"],
            size((row["bytes_down"] or 0) + (row["bytes_up"] or 0)), duration(row["simulated_seconds"]),
        )[:shown_columns]
        for row in rows
    ]  # fmt: skip
    screen.print(table(columns[:shown_columns], shown, right=(2, 3, 4, 7, 8)))
    for row in rows:
        if row["problem"]:
            screen.print(row["problem"])
