"""What is said at the end of a run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from undergrowth.cli.output import console, print_json
from undergrowth.core import RunError
from undergrowth.report.record import learning_efficiency
from undergrowth.report.tables import costs, count, facts, score
from undergrowth.runs import Result

KEYS = (
    "run", "method", "data", "model", "seed", "rounds", "clients", "engine", "accuracy", "loss", "bytes_down",
    "bytes_up", "flops", "simulated_seconds", "joules", "peak_device_bytes", "wall_seconds", "clients_per_second",
    "model_digest",
)  # fmt: skip
_MOST_NOTES = 10


def tell(result: Result, *, json: bool, report: bool) -> None:
    """For people on standard output; with `json`, one object there and the notes on standard error."""
    page = _write_report(result) if report else None
    if json:
        _notes(result.notes, stderr=True)
        print_json({key: result.summary[key] for key in KEYS})
        return
    summary, screen = result.summary, console()
    screen.print(
        f"{result.method} on {result.data}: {summary['model']}, {count(summary['clients'])} devices, "
        f"{count(summary['rounds'])} rounds, seed {summary['seed']}\n"
    )
    screen.print(facts([("accuracy", score(result.accuracy)), ("loss", score(result.loss))]))
    spent = result.ledger.compute_seconds
    efficiency = learning_efficiency(result.history, spent)
    screen.print(costs({**summary, "compute_seconds": spent, "learning_efficiency": efficiency}))
    _notes(result.notes)
    rows = [("run", result.run), ("model", result.folder / "model.safetensors")]
    if page:
        rows.append(("report", page))
    else:
        rows.append(("more", f"undergrowth report {result.run}{_place(result)} -o report.html"))
    screen.print(facts(rows))


def _write_report(result: Result) -> Path | None:
    """The run is finished and kept; that there is no page about it is no reason to call it failed."""
    from undergrowth.report import report

    try:
        return report([result.run], result.folder.parent, result.folder / "report.html")
    except RunError as error:
        sys.stderr.write(f"note: there is no report: {error}\n")
        return None


def _notes(notes: list[str], stderr: bool = False) -> None:
    screen = console(stderr)
    for note in notes[:_MOST_NOTES]:
        screen.print(f"note: {note}")
    if len(notes) > _MOST_NOTES:
        screen.print(f"note: and {len(notes) - _MOST_NOTES} more, which `undergrowth show` and the report have")
    if notes and not stderr:
        screen.print()


def _place(result: Result) -> str:
    folder = result.folder.parent
    return "" if folder == Path("runs") else f" --out {shlex.quote(str(folder))}"
