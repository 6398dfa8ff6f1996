"""The output at the end of a run: summary, costs, notes, and the path of the report."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from undergrowth.cli.output import console, print_json
from undergrowth.core import RunError
from undergrowth.exchange import Totals
from undergrowth.report.personal_tables import headline, personal_table
from undergrowth.report.run_record import learning_efficiency
from undergrowth.report.stream_section import RECOVERY_COLUMNS, recovery_rows
from undergrowth.report.tables import cost_table, count, facts, other_scores, score, start_line, table
from undergrowth.runs import Result
from undergrowth.runs.commands import out_option
from undergrowth.runs.result import NOT_SUMMARISED

JSON_KEYS = (
    "run", "method", "data", "model", "seed", "rounds", "clients", "engine", "accuracy", "loss",
    *(field.name for field in fields(Totals) if field.name not in NOT_SUMMARISED),
    "wall_seconds", "clients_per_second", "model_digest",
)  # fmt: skip
_MAX_NOTES = 10


def print_summary(result: Result, *, json: bool, report: bool | None) -> None:
    """Print a finished run as tables, or with `json` as one JSON object and its notes on standard error.

    With `report`, also write the HTML page of the run into its folder. None: unless `json`.
    """
    page = _write_report(result) if (not json if report is None else report) else None
    if json:
        _print_notes(result.notes, stderr=True)
        print_json(json_summary(result))
        return
    summary, screen = result.summary, console()
    screen.print(
        f"{result.method} on {result.data}: {summary['model']}, {count(summary['clients'])} devices, "
        f"{count(summary['rounds'])} rounds, seed {summary['seed']}\n"
    )
    metrics = [(name, score(value)) for name, value in result.metrics.items()]
    screen.print(facts([*metrics, *other_scores(result.history), ("loss", score(result.loss))]))
    seconds = result.ledger.compute_seconds
    efficiency = learning_efficiency(result.history, seconds)
    screen.print(cost_table({**summary, "compute_seconds": seconds, "learning_efficiency": efficiency}))
    if "start" in summary:
        screen.print(f"before the first round: {start_line(summary['start'])}\n")
    personal = result.personal
    if personal is not None:
        screen.print(personal_table(personal))
        screen.print(f"{headline(personal)}\n")
    stream = result.stream
    if stream is not None and stream.shifts:
        screen.print(table(RECOVERY_COLUMNS, recovery_rows(stream.recoveries), right=range(len(RECOVERY_COLUMNS))))
    _print_notes(result.notes)
    rows = [("run", result.run), ("model", result.folder / "model.safetensors")]
    if page:
        rows.append(("report", page))
    else:
        rows.append(("more", f"undergrowth report {result.run}{out_option(result.folder.parent)} -o report.html"))
    screen.print(facts(rows))


def json_summary(result: Result) -> dict[str, Any]:
    """What --json prints about a run. A run with other metrics than the accuracy also has its task and all metrics."""
    return {
        key: result.summary[key]
        for key in (*JSON_KEYS, "task", "metrics", "start", "personal", "stream")
        if key in result.summary
    }


def _write_report(result: Result) -> Path | None:
    """Write the page of the run. A failure is only noted, because the run itself is finished and stored."""
    from undergrowth.report import write_report

    try:
        return write_report([result.run], result.folder.parent, result.folder / "report.html")
    except RunError as error:
        sys.stderr.write(f"note: no report was written: {error}\n")
        return None


def _print_notes(notes: list[str], stderr: bool = False) -> None:
    screen = console(stderr)
    for note in notes[:_MAX_NOTES]:
        screen.print(f"note: {note}")
    if len(notes) > _MAX_NOTES:
        screen.print(f"note: {len(notes) - _MAX_NOTES} more; `undergrowth show` and the report list all notes")
    if notes and not stderr:
        screen.print()
