"""`undergrowth plan`: the cost of one round for each device class and method, without training."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from undergrowth.cli import run
from undergrowth.cli.output import AsJson, console, print_json

if TYPE_CHECKING:
    from undergrowth.report import PlanReport


_MAX_WIDTH = 10_000  # of a table that is measured


def plan(
    file: run.ExperimentFile = None,
    method: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Method to plan. Repeatable. (Default: all methods.)")
    ] = None,
    data: run.DataName = None,
    partition: run.Partition = None,
    model: run.ModelName = None,
    clients: run.Clients = None,
    fleet: run.FleetName = None,
    deadline: run.Deadline = None,
    topology: run.TopologyName = None,
    epochs: run.Epochs = None,
    batch: run.Batch = None,
    lr: run.LearningRate = None,
    settings: run.SettingOptions = None,
    json: AsJson = False,
    target: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE.html", help="Also write an HTML page with figures.")
    ] = None,
) -> None:
    """Print what one round costs each device class with each method, and which devices can take part.

    Nothing is trained. A row shows the device of its class whose round takes the median time. Sentences below the table
    say who can take part, the energy of the run, how long batteries last, and what to change for one more class. For a
    tree, a second table shows the links and the time of a round of each level of servers.

    Examples:

      undergrowth plan --fleet mixed-edge --deadline 0.5

      undergrowth plan --method fedavg --method fedbuff --data cifar10 --model wrn-40-1 --fleet phones -o plan.html
    """
    from undergrowth.report.plan_report import build_plan
    from undergrowth.runs.config import parse_experiment
    from undergrowth.runs.planning import default_methods

    methods = list(dict.fromkeys(method or ()))
    flags = {
        "method": methods[0] if methods else None,  # method options in -s belong to the first method
        "data": data, "partition": partition, "model": model, "clients": clients, "fleet": fleet,
        "deadline": deadline, "topology": topology, "epochs": epochs, "batch": batch, "lr": lr,
    }  # fmt: skip
    raw, dropped = run.build_raw_experiment(file, settings or [], flags)
    run.print_dropped(dropped, file)
    planned = parse_experiment(raw)
    total = len(methods or default_methods(planned))
    found = build_plan(planned, methods, watch=lambda rows: _show_progress(rows, total))
    path = found.page(target) if target is not None else None
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)
    if json:
        print_json(found.rows)
    else:
        _print_plan(found)
    if path is not None:
        typer.echo(f"wrote the page to '{path}'", err=True)


def _show_progress(rows: Iterable[dict[str, Any]], total: int) -> Iterator[dict[str, Any]]:
    """Yield `rows`, with a progress bar over `total` methods on standard error if that is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    if not sys.stderr.isatty():
        yield from rows
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("planning", total=total)
        for done, (name, group) in enumerate(groupby(rows, key=lambda row: row["method"]), 1):
            yield from group
            bar.update(task, description=f"planning: {name}", completed=done)


def _print_plan(found: PlanReport) -> None:
    """Print the table, on two lines a row if the terminal is narrow, and the advice."""
    from undergrowth.report.plan_page import heading
    from undergrowth.report.plan_table import narrow_table, wide_table
    from undergrowth.report.plan_tree import explain_tree, tree_table

    screen = console()
    wide = wide_table(found)
    screen.print(heading(found.planned))
    needed = screen.measure(wide, options=screen.options.update(max_width=_MAX_WIDTH)).maximum
    screen.print(wide if needed <= screen.width else narrow_table(found))
    if found.tree:
        screen.print(tree_table(found.tree))
        screen.print(explain_tree(found.tree))
    for sentence in found.advice:
        screen.print(sentence)
