"""`undergrowth resume`: continues a run that was interrupted, was killed, or failed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from undergrowth.cli.output import AsJson, OutFolder, RunName
from undergrowth.cli.run import Quiet, Trackers, WriteReport


def resume(
    run: RunName,
    out: OutFolder = "runs",
    allow_changed_source: Annotated[
        bool, typer.Option("--allow-changed-source", help="Go on if the source of your model, method or data changed.")
    ] = False,
    track: Trackers = None,
    quiet: Quiet = False,
    json: AsJson = False,
    report: WriteReport = None,
) -> None:
    """Continue a run after its last finished round. The result is bit for bit that of an uninterrupted run.

    If the newest checkpoint is damaged, the one before it is used, and a note says so.

    Example: undergrowth resume last
    """
    from undergrowth.callbacks import build_trackers
    from undergrowth.cli.run_summary import print_summary
    from undergrowth.cli.run_tracking import track_run
    from undergrowth.runs import Store
    from undergrowth.runs.commands import resume_command
    from undergrowth.runs.execution import resume as resume_run

    with Store(out) as store:
        name = store.find(run)
        if store.run(name)["status"] == "done":
            typer.echo(f"note: run {name} was already finished", err=True)
    with track_run(quiet, resume_command(Path(out), name)) as hooks:
        trackers = build_trackers(track or ())
        result = resume_run(name, out, allow_changed_source=allow_changed_source, **hooks, callbacks=trackers)
    print_summary(result, json=json, report=report)
