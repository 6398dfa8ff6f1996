"""`undergrowth report`: an HTML page about one or several runs."""

from __future__ import annotations

from typing import Annotated

import typer

from undergrowth.cli.output import AsJson, OutFolder, open_store, print_json


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run ids, starts of ids, or `last`.")],
    target: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE.html", help="The page to write.")
    ] = "report.html",
    analyses: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="ANALYSIS",
            help="Analysis of the final model: cka, bias, attention, entropy, tsne, efficiency, or all. Repeatable.",
        ),
    ] = None,
    devices: Annotated[
        int, typer.Option("--devices", metavar="N", min=1, help="Analyse the N devices with the most samples.")
    ] = 10,
    out: OutFolder = "runs",
    json: AsJson = False,
) -> None:
    """Write an HTML page about runs: curves, accuracy against cost, devices, settings.

    The page is one file and opens without a network. With --json, the numbers of the analyses are printed as well.

    Example: undergrowth report 20260102-101500 last -o both.html --with cka --with bias
    """
    from undergrowth.report import analyse, write_report

    with open_store(out) as store:
        names = [store.find(run) for run in runs]
    numbers = analyse(names, analyses or (), out, devices=devices)
    path = write_report(names, out, target, numbers)
    if json:
        print_json({"report": str(path), "runs": names, **({"analyses": numbers} if numbers else {})})
    else:
        typer.echo(str(path))
