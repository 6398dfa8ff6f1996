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
    analyses: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="ANALYSIS",
            help="An analysis of the final model: cka, bias, attention, entropy, tsne, efficiency, or all. Repeatable.",
        ),
    ] = None,
    devices: Annotated[
        int, typer.Option("--devices", metavar="N", min=1, help="Devices that analyses look at, the largest.")
    ] = 10,
    out: OutFolder = "runs",
    json: AsJson = False,
) -> None:
    """Write one page about one or several runs: curves, accuracy against costs, devices, settings.

    The page holds all that it needs and opens without a network. With --json, the numbers of the analyses are printed.

    Example: undergrowth report 20260102-101500 last -o both.html --with cka --with bias
    """
    from undergrowth.report import analyse
    from undergrowth.report import report as write

    with opened(out) as store:
        names = [store.find(run) for run in runs]
    found = analyse(names, analyses or (), out, devices=devices)
    path = write(names, out, target, found)
    if json:
        print_json({"report": str(path), "runs": names, **({"analyses": found} if found else {})})
    else:
        typer.echo(str(path))
