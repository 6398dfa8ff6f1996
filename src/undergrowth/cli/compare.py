"""`undergrowth compare`: runs side by side."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from undergrowth.cli.output import AsJson, OutFolder, console, opened, print_json

_TO_REACH = ("round", "simulated_seconds", "bytes_down", "bytes_up", "flops", "joules")


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN RUN...", help="Ids, beginnings of ids, or `last`.")],
    out: OutFolder = "runs",
    json: AsJson = False,
) -> None:
    """Compare runs: settings that differ, accuracy, costs, and what each paid to reach what all of them reached.

    Example: undergrowth compare 20260102-101500 last
    """
    from undergrowth.core import InputError
    from undergrowth.report.record import common_accuracy, differences, read
    from undergrowth.report.tables import COSTS, NOTHING, score, table

    with opened(out) as store:
        records = read(store, runs)
    if len(records) < 2:
        raise InputError(f"compare needs two runs or more, and {', '.join(runs)} is one; `undergrowth list` shows all")
    apart = differences(records)
    accuracy = common_accuracy(records)
    reached = [None if accuracy is None else record.reached(accuracy) for record in records]
    if json:
        print_json({
            "runs": [record.run for record in records],
            "differences": apart,
            "totals": [record.totals for record in records],
            "common_accuracy": accuracy,
            "to_reach_it": [row and {key: row[key] for key in _TO_REACH} for row in reached],
        })  # fmt: skip
        return
    rows: list[tuple[Any, ...]] = [(path, *values) for path, values in apart.items()]
    rows.append(("status", *(record.row["status"] for record in records)))
    rows.append(("accuracy", *(score(record.totals.get("accuracy")) for record in records)))
    rows.append(("best accuracy", *(score(record.best_accuracy) for record in records)))
    rows.append(("loss", *(score(record.totals.get("loss")) for record in records)))
    for key, words, written in COSTS:
        rows.append((words, *(written(record.totals.get(key)) for record in records)))
    columns = ["", *(record.run for record in records)]
    numbers = range(1, len(columns))
    screen = console()
    screen.print(table(columns, rows, right=numbers))
    if accuracy is not None:
        paid: list[tuple[Any, ...]] = [("rounds", *(row["round"] if row else NOTHING for row in reached))]
        for key, words, written in COSTS:
            if key in _TO_REACH:
                paid.append((words, *(written(row[key]) if row else NOTHING for row in reached)))
        screen.print(table(columns, paid, title=f"to reach an accuracy of {score(accuracy)}", right=numbers))
