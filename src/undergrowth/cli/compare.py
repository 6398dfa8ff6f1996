"""`undergrowth compare`: runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from undergrowth.cli.output import AsJson, OutFolder, RunNames, TargetAccuracy, TargetMetric, console, print_json

if TYPE_CHECKING:  # torch is imported when the command runs, not for its help
    from undergrowth.core import Metric
    from undergrowth.report.run_record import RunRecord


def compare(
    runs: RunNames,
    accuracy: TargetAccuracy = None,
    metric: TargetMetric = None,
    out: OutFolder = "runs",
    json: AsJson = False,
) -> None:
    """Compare runs: settings that differ, accuracy, costs, and the rounds and costs to reach an accuracy.

    Without --accuracy, that is the highest accuracy that every run reached.
    Runs of other tasks are compared by their main metric, such as r2.

    Example: undergrowth compare 20260102-101500 last --accuracy 0.9
    """
    from undergrowth.core import InputError
    from undergrowth.report import find_runs
    from undergrowth.report.run_record import (
        check_accuracy_target,
        check_metric_target,
        common_value,
        load_records,
        shared_metric,
    )
    from undergrowth.runs import Store

    check_metric_target(metric)
    folder, names = find_runs(runs, out)
    with Store(folder) as store:
        records = load_records(store, names)
    if len(records) < 2:
        raise InputError(f"compare needs at least two runs, and {', '.join(runs)} is one; see `undergrowth list`")
    main = shared_metric(records)
    check_accuracy_target(accuracy, main)
    common = common_value(records, main)
    target = next((value for value in (accuracy, metric, common) if value is not None), None)
    reached = [None if target is None else record.first_round_with(target, main) for record in records]
    if json:
        print_json(_as_json(records, main, common, target, reached))
    else:
        _print_tables(records, main, target, reached)


def _as_json(
    records: Sequence[RunRecord],
    main: Metric,
    common: float | None,
    target: float | None,
    reached: Sequence[Mapping[str, Any] | None],
) -> dict[str, Any]:
    """What --json prints. `reached`: of each run, the row of the first round with the value `target` of `main`."""
    from undergrowth.exchange import ROUND_COST_KEYS
    from undergrowth.report.personal_tables import change_from, shared_models
    from undergrowth.report.run_record import differences, short_labels

    return {
        "runs": [record.run for record in records],
        "labels": short_labels(records),
        "differences": differences(records),
        "totals": [record.totals for record in records],
        "metric": main.name,
        f"common_{main.name}": common,
        main.name: target,
        "to_reach_it": [row and {key: row.get(key) for key in ("round", *ROUND_COST_KEYS)} for row in reached],
        "changes": {
            model: [asdict(found) for each in records[1:] if (found := change_from(records[0], each, model))]
            for model in shared_models(records)
        },
    }


def _print_tables(
    records: Sequence[RunRecord], main: Metric, target: float | None, reached: Sequence[Mapping[str, Any] | None]
) -> None:
    """Prints all figures, the devices that gain or lose, and the costs to reach `target`. `reached`: see `_as_json`."""
    from undergrowth.exchange import ROUND_COST_KEYS
    from undergrowth.report.personal_tables import CHANGE_COLUMNS, change_rows
    from undergrowth.report.run_comparison import (
        FEWER_FIGURES,
        column_per_run,
        reached_figures,
        row_per_run,
        total_figures,
    )
    from undergrowth.report.run_record import short_labels
    from undergrowth.report.tables import NO_VALUE, SHOWN_COSTS, describe_value, table

    labels, screen = short_labels(records), console()
    beside = column_per_run(labels, _rows(records, main), screen)
    screen.print(beside or row_per_run(records, *total_figures(records, main), screen))
    changed_devices = change_rows(records, labels)
    if changed_devices:
        title = f"devices that gain or lose accuracy, against {labels[0]}"
        screen.print(table(CHANGE_COLUMNS, changed_devices, title=title, right=range(2, 6)))
    if target is not None:
        costs: list[tuple[Any, ...]] = [("rounds", *(row["round"] if row else NO_VALUE for row in reached))]
        for key, title, formatted in SHOWN_COSTS:
            if key in ROUND_COST_KEYS:
                costs.append((title, *(formatted(row.get(key)) if row else NO_VALUE for row in reached)))
        title = f"to reach {describe_value(main, target)}"
        costs_beside = column_per_run(labels, costs, screen, title) if beside else None
        screen.print(costs_beside or row_per_run(records, *reached_figures(reached), screen, title))
    if not beside:
        screen.print(FEWER_FIGURES)


def _rows(records: Sequence[RunRecord], main: Metric) -> list[tuple[Any, ...]]:
    """The settings that differ, the scores and the costs, with one column per run."""
    from undergrowth.report.personal_tables import percent, shared_models
    from undergrowth.report.run_record import differences
    from undergrowth.report.tables import SHOWN_COSTS, score

    rows: list[tuple[Any, ...]] = [("run", *(record.run for record in records))]
    rows += [(path, *values) for path, values in differences(records).items()]
    rows.append(("status", *(record.row["status"] for record in records)))
    rows.append(("rounds", *(len(record.rounds) for record in records)))
    rows.append((main.name, *(score(record.totals.get(main.name)) for record in records)))
    rows.append((f"best {main.name}", *(score(record.best(main)) for record in records)))
    if main.name != "loss":
        rows.append(("loss", *(score(record.totals.get("loss")) for record in records)))
    for key, title, formatted in SHOWN_COSTS:
        rows.append((title, *(formatted(record.totals.get(key)) for record in records)))
    for model in shared_models(records):
        figures = [each.personal.relative_distribution(model) for each in records if each.personal is not None]
        rows.append((f"relative accuracy, {model}", *(percent(each.mean, True) for each in figures)))
        rows.append((f"devices below 0, {model}", *(each.below_zero for each in figures)))
    return rows
