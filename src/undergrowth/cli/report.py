"""`undergrowth report`: an HTML page about one or several runs."""

from __future__ import annotations

from typing import Annotated

import typer

from undergrowth.cli.output import AsJson, GroupPaths, OutFolder, RunNames, print_json


def report(
    runs: RunNames,
    target: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE.html", help="The page to write.")
    ] = "report.html",
    group: GroupPaths = None,
    analyses: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="ANALYSIS",
            help="Analysis of the final model: cka, bias, attention, entropy, tsne, efficiency, pruning, or all. "
            "Repeatable.",
        ),
    ] = None,
    devices: Annotated[
        int, typer.Option("--devices", metavar="N", min=1, help="Analyse the N devices with the most samples.")
    ] = 10,
    out: OutFolder = "runs",
    json: AsJson = False,
) -> None:
    """Write an HTML page about runs: curves, accuracy against cost, devices, settings.

    Runs of a group have one colour: their mean, and a band of one standard deviation. The page is one file and opens
    without a network. With --json, the numbers of the analyses are printed as well.

    Example: undergrowth report 'runs/*' --group method --group train.lr -o all.html --with cka
    """
    from undergrowth.report import analyse, find_runs, write_report

    folder, names = find_runs(runs, out)
    numbers = analyse(names, analyses or (), folder, devices=devices)
    path = write_report(names, folder, target, numbers, group=group or ())
    if json:
        print_json({"report": str(path), "runs": names, **({"analyses": numbers} if numbers else {})})
    else:
        typer.echo(str(path))
