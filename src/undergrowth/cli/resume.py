"""`undergrowth resume`: goes on with a run that was interrupted, killed, or failed."""

from __future__ import annotations

from typing import Annotated

import typer

from undergrowth.cli.output import AsJson, OutFolder, opened
from undergrowth.cli.run import WriteReport


def resume(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Its id, the beginning of its id, or `last`.")],
    out: OutFolder = "runs",
    json: AsJson = False,
    report: WriteReport = None,
) -> None:
    """Go on with a run after its last finished round, bit for bit as if it had never stopped.

    A checkpoint that was damaged is passed over for the one before it, and a note says so.

    Example: undergrowth resume last
    """
    from undergrowth.cli.outcome import tell
    from undergrowth.cli.watch import watched
    from undergrowth.runs.execution import resume as go_on

    with opened(out) as store:
        name = store.find(run)
        if store.run(name)["status"] == "done":
            typer.echo(f"note: run {name} was already finished", err=True)
    with watched() as hooks:
        result = go_on(name, out, **hooks)
    tell(result, json=json, report=not json if report is None else report)
