"""`undergrowth list` and `show`: the runs of a folder, and one of them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from undergrowth.cli.output import AsJson, OutFolder, console, opened, print_json

_SHOWN_ROUNDS = 10
_WIDE_ENOUGH = 105  # columns of a terminal; the method is in the id, and on a narrow one the costs are left out
_NARROW_COLUMNS = 6
_FACTS = ("method", "data", "model", "seed", "rounds", "clients", "engine")


def list_runs(out: OutFolder = "runs", json: AsJson = False) -> None:
    """List the runs of a folder, the newest last.

    Example: undergrowth list --out experiments
    """
    from undergrowth.report.tables import count, duration, score, size, table

    with opened(out) as store:
        rows = []
        for row in store.runs():
            # Only an unfinished run has to be asked how far it has come.
            totals: dict[str, Any] = row["summary"] or next(reversed(store.rounds(row["id"])), {})
            done = row["rounds"] if row["summary"] else totals.get("round", 0)
            kept = {key: totals.get(key) for key in ("accuracy", "loss", "bytes_down", "bytes_up", "simulated_seconds")}
            facts = {key: row[key] for key in _FACTS}
            about = {"run": row["id"], "created": row["created"], "status": row["status"]}
            rows.append({**about, **facts, "rounds_done": done, **kept})
    if json:
        print_json(rows)
        return
    if not rows:
        typer.echo(f"there is no run in '{out}' yet")
        return
    screen = console()
    narrow = screen.width < _WIDE_ENOUGH
    columns = ("run", "status", "rounds", "accuracy", "devices", "model", "data", "sent", "simulated")
    shown = [
        (
            row["run"], row["status"], f"{row['rounds_done']}/{row['rounds']}", score(row["accuracy"]),
            count(row["clients"]), row["model"], row["data"],
            size((row["bytes_down"] or 0) + (row["bytes_up"] or 0)), duration(row["simulated_seconds"]),
        )[: _NARROW_COLUMNS if narrow else None]
        for row in rows
    ]  # fmt: skip
    screen.print(table(columns[: _NARROW_COLUMNS if narrow else None], shown, right=(2, 3, 4, 7, 8)))


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Its id, the beginning of its id, or `last`.")],
    out: OutFolder = "runs",
    json: AsJson = False,
) -> None:
    """Show one run: how it ended, what it cost, its rounds, settings and notes.

    Example: undergrowth show last
    """
    from undergrowth.report.command import command
    from undergrowth.report.record import read
    from undergrowth.report.tables import costs, facts, score, table

    with opened(out) as store:
        record = read(store, [run])[0]
        folder = store.folder / record.run
    row, totals = record.row, record.totals
    if json:
        kept = {key: row[key] for key in ("created", "status", *_FACTS)}
        parts = {"settings": row["experiment"]["settings"], "notes": row["notes"], "history": record.rounds}
        print_json({"run": record.run, **kept, **_without(totals, ("round",)), **parts})
        return
    screen = console()
    about = [
        ("run", record.run), ("status", row["status"]), ("created", row["created"]), ("folder", folder),
        ("command", command(record)),
    ]  # fmt: skip
    if not record.done:
        about.append(("to go on", record.resume_command))
    about += [("accuracy", score(totals.get("accuracy"))), ("loss", score(totals.get("loss")))]
    screen.print(facts(about))
    screen.print(costs(totals))
    if record.rounds:
        screen.print(_rounds(record.rounds))
    settings = [(path, value) for path, value in record.settings.items() if value is not None]
    screen.print(table(("setting", "value"), settings))
    for note in row["notes"]:
        screen.print(f"note: {note}")


def _rounds(rows: list[dict[str, Any]]) -> Any:
    from undergrowth.report.tables import duration, score, table

    columns = ("round", "accuracy", "loss", "arrived", "late", "lost", "refused", "simulated")
    shown = [
        (
            row["round"], score(row["accuracy"]), score(row["loss"]), row["arrived"], row["late"], row["lost"],
            row["refused"], duration(row["simulated_seconds"]),
        )
        for row in rows[-_SHOWN_ROUNDS:]
    ]  # fmt: skip
    title = f"the last {_SHOWN_ROUNDS} of {len(rows)} rounds" if len(rows) > _SHOWN_ROUNDS else None
    return table(columns, shown, title=title, right=range(len(columns)))


def _without(row: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}
