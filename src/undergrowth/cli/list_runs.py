"""`undergrowth list`: the runs in a folder."""

from __future__ import annotations

from typing import Any

import typer

from undergrowth.cli.output import AsJson, OutFolder, console, open_store, print_json

_MIN_WIDTH_FOR_COSTS = 105  # terminal columns; a narrower terminal gets only the first columns of the table
_NARROW_COLUMNS = 6
RUN_FACTS = ("method", "data", "model", "seed", "rounds", "clients", "engine")
_TOTALS = ("accuracy", "loss", "bytes_down", "bytes_up", "simulated_seconds")


def list_runs(out: OutFolder = "runs", json: AsJson = False) -> None:
    """List the runs in a folder, newest last, with status, accuracy and costs.

    Example: undergrowth list --out experiments
    """
    from undergrowth.report.tables import count, duration, score, size, table

    with open_store(out) as store:
        rows = []
        for row in store.runs():
            # A finished run has its totals in the summary; for the others the last round is read.
            totals: dict[str, Any] = row["summary"] or next(reversed(store.rounds(row["id"])), {})
            rows.append({
                "run": row["id"], "created": row["created"], "status": row["status"],
                **{key: row[key] for key in RUN_FACTS},
                "rounds_done": row["summary"].get("rounds") or totals.get("round", 0),
                **{key: totals.get(key) for key in _TOTALS},
            })  # fmt: skip
    if json:
        print_json(rows)
        return
    if not rows:
        typer.echo(f"no runs in '{out}' yet")
        return
    screen = console()
    shown_columns = _NARROW_COLUMNS if screen.width < _MIN_WIDTH_FOR_COSTS else None
    columns = ("run", "status", "rounds", "accuracy", "devices", "model", "data", "sent", "simulated")
    shown = [
        (
            row["run"], row["status"], f"{row['rounds_done']}/{row['rounds']}", score(row["accuracy"]),
            count(row["clients"]), row["model"], row["data"],
            size((row["bytes_down"] or 0) + (row["bytes_up"] or 0)), duration(row["simulated_seconds"]),
        )[:shown_columns]
        for row in rows
    ]  # fmt: skip
    screen.print(table(columns[:shown_columns], shown, right=(2, 3, 4, 7, 8)))
