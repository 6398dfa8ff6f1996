"""`undergrowth show`: one run in the terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from undergrowth.cli.output import AsJson, OutFolder, RunName, console, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from undergrowth.report.run_record import RunRecord
    from undergrowth.report.tables import WideOrNarrow
    from undergrowth.runs.relative_accuracy import PersonalAccuracy

_MAX_ROUNDS = 10


def show(
    run: RunName,
    out: OutFolder = "runs",
    json: AsJson = False,
    devices: Annotated[bool, typer.Option("--devices", help="Show what each device did and what it cost.")] = False,
) -> None:
    """Show one run: status, accuracy, costs, last rounds, settings and notes.

    Examples:

      undergrowth show last

      undergrowth show last --devices
    """
    from undergrowth.core import InputError
    from undergrowth.report.rerun import rerun_command
    from undergrowth.report.run_record import load_records
    from undergrowth.report.tables import cost_table, device_table, facts, other_scores, score, start_line, table
    from undergrowth.runs import Store
    from undergrowth.runs.listing import RUN_FACTS

    with Store(out) as store:
        record = load_records(store, [run])[0]
        folder = store.folder / record.run
    row, totals = record.row, record.totals
    if json:
        about = {key: row[key] for key in ("created", "status", *RUN_FACTS)}
        final = {key: value for key, value in totals.items() if key != "round"}
        details = {"settings": row["experiment"]["settings"], "notes": row["notes"], "history": record.rounds}
        details |= {"devices": record.devices} if devices else {}
        details |= {"relative": _relative(record.personal)} if record.personal else {}
        print_json({"run": record.run, **about, **final, **details})
        return
    screen = console()
    if devices:
        if not record.devices:
            raise InputError(f"run '{record.run}' is not finished; its devices are known at its end")
        screen.print(device_table(record.devices, record.metric.name))
        return
    fact_rows = [
        ("run", record.run), ("status", row["status"]), ("created", row["created"]), ("folder", folder),
        ("command", rerun_command(record)),
    ]  # fmt: skip
    if not record.done:
        fact_rows.append(("resume with", record.resume_command))
    if "start" in totals:
        fact_rows.append(("before the first round", start_line(totals["start"])))
    names = dict.fromkeys([record.metric.name, *totals.get("metrics", {}), "loss"])
    fact_rows += [*((name, score(totals.get(name))) for name in names), *other_scores(record.rounds)]
    screen.print(facts(fact_rows))
    screen.print(cost_table(totals))
    for each in _device_tables(record):
        screen.print(each)
    if record.rounds:
        screen.print(_round_table(record))
    screen.print(table(("setting", "value"), [item for item in record.settings.items() if item[1] is not None]))
    for note in row["notes"]:
        screen.print(f"note: {note}")


def _device_tables(record: RunRecord) -> Iterator[Table | WideOrNarrow]:
    """Tables of the models that were compared on the devices, and of the shifts of their samples."""
    from undergrowth.report.personal_tables import personal_table, tier_table
    from undergrowth.report.stream_section import RECOVERY_COLUMNS, recovery_rows
    from undergrowth.report.tables import table

    if record.personal is not None:
        yield personal_table(record.personal)
        if len(set(record.personal.tiers)) > 1:
            yield tier_table(record.personal)
    if record.stream is not None and record.stream.shifts:
        yield table(RECOVERY_COLUMNS, recovery_rows(record.stream.recoveries), right=range(len(RECOVERY_COLUMNS)))


def _relative(personal: PersonalAccuracy) -> dict[str, Any]:
    """The figures of the relative accuracy of each model, of all devices and by device class."""
    return {
        model: {
            **asdict(personal.relative_distribution(model)),
            "classes": {tier: asdict(figures) for tier, figures in personal.by_tier(model).items()},
        }
        for model in personal.compared
    }


def _round_table(record: RunRecord) -> Table:
    from undergrowth.report.tables import duration, score, table

    rows, metric, outcomes = record.rounds, record.metric.name, ("arrived", "late", "lost", "refused")
    columns = ("round", metric, "loss", *outcomes, "simulated")
    shown = []
    for row in rows[-_MAX_ROUNDS:]:
        answers = [record.answers(row).get(outcome, 0) for outcome in outcomes]
        seconds = duration(row["simulated_seconds"])
        shown.append((row["round"], score(row.get(metric)), score(row["loss"]), *answers, seconds))
    title = f"the last {_MAX_ROUNDS} of {len(rows)} rounds" if len(rows) > _MAX_ROUNDS else None
    return table(columns, shown, title=title, right=range(len(columns)))
