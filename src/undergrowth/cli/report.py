"""`undergrowth report`: one page about one or several runs."""

from __future__ import annotations

from typing import Annotated

import typer

from undergrowth.cli.output import AsJson, OutFolder, opened, print_json


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids, beginnings of ids, or `last`.")],
    target: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE.html", help="The page to write.")
    ] = "report.html",
    out: OutFolder = "runs",
    json: AsJson = False,
) -> None:
    """Write one page about one or several runs: curves, accuracy against costs, devices, settings.

    The page holds all that it needs and opens without a network.

    Example: undergrowth report 20260102-101500 last -o both.html
    """
    from undergrowth.report import report as write

    with opened(out) as store:
        names = [store.find(run) for run in runs]
    path = write(names, out, target)
    if json:
        print_json({"report": str(path), "runs": names})
    else:
        typer.echo(str(path))
