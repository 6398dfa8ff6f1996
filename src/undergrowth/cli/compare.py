"""`undergrowth compare`: runs side by side."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from undergrowth.cli.output import AsJson, OutFolder, RunNames, TargetAccuracy, console, open_store, print_json

_COSTS_TO_REACH = ("round", "simulated_seconds", "bytes_down", "bytes_up", "flops", "joules")


def compare(runs: RunNames, accuracy: TargetAccuracy = None, out: OutFolder = "runs", json: AsJson = False) -> None:
    """Compare runs: settings that differ, accuracy, costs, and the rounds and costs to reach an accuracy.

    Without --accuracy, that is the highest accuracy that every run reached.

    Example: undergrowth compare 20260102-101500 last --accuracy 0.9
    """
    from undergrowth.core import InputError
    from undergrowth.report import find_runs
    from undergrowth.report.personal_tables import CHANGE_COLUMNS, change_from, change_rows, percent, shared_models
    from undergrowth.report.run_record import best_accuracy, common_accuracy, differences, load_records, short_labels
    from undergrowth.report.tables import COSTS, NO_VALUE, score, table

    folder, names = find_runs(runs, out)
    with open_store(folder) as store:
        records = load_records(store, names)
    if len(records) < 2:
        raise InputError(f"compare needs at least two runs, and {', '.join(runs)} is one; see `undergrowth list`")
    changed, labels = differences(records), short_labels(records)
    target = common_accuracy(records) if accuracy is None else accuracy
    reached = [None if target is None else record.first_round_with(target) for record in records]
    if json:
        print_json({
            "runs": [record.run for record in records],
            "labels": labels,
            "differences": changed,
            "totals": [record.totals for record in records],
            "common_accuracy": common_accuracy(records),
            "accuracy": target,
            "to_reach_it": [row and {key: row[key] for key in _COSTS_TO_REACH} for row in reached],
            "changes": {
                model: [asdict(found) for each in records[1:] if (found := change_from(records[0], each, model))]
                for model in shared_models(records)
            },
        })  # fmt: skip
        return
    rows: list[tuple[Any, ...]] = [("run", *(record.run for record in records))]
    rows += [(path, *values) for path, values in changed.items()]
    rows.append(("status", *(record.row["status"] for record in records)))
    rows.append(("rounds", *(len(record.rounds) for record in records)))
    rows.append(("accuracy", *(score(record.totals.get("accuracy")) for record in records)))
    rows.append(("best accuracy", *(score(best_accuracy(record.rounds)) for record in records)))
    rows.append(("loss", *(score(record.totals.get("loss")) for record in records)))
    for key, title, formatted in COSTS:
        rows.append((title, *(formatted(record.totals.get(key)) for record in records)))
    for model in shared_models(records):
        figures = [each.personal.relative_distribution(model) for each in records if each.personal is not None]
        rows.append((f"relative accuracy, {model}", *(percent(each.mean, True) for each in figures)))
        rows.append((f"devices below 0, {model}", *(each.below_zero for each in figures)))
    columns = ["", *labels]
    number_columns = range(1, len(columns))
    screen = console()
    screen.print(table(columns, rows, right=number_columns))
    changed_devices = change_rows(records, labels)
    if changed_devices:
        title = f"devices that gain or lose accuracy, against {labels[0]}"
        screen.print(table(CHANGE_COLUMNS, changed_devices, title=title, right=range(2, 6)))
    if target is not None:
        costs: list[tuple[Any, ...]] = [("rounds", *(row["round"] if row else NO_VALUE for row in reached))]
        for key, title, formatted in COSTS:
            if key in _COSTS_TO_REACH:
                costs.append((title, *(formatted(row[key]) if row else NO_VALUE for row in reached)))
        screen.print(table(columns, costs, title=f"to reach an accuracy of {score(target)}", right=number_columns))
