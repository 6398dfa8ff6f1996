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
    from undergrowth.runs.config import Experiment


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

    Nothing is trained. A row shows the device of its class whose round takes the median time.

    Examples:

      undergrowth plan --fleet mixed-edge --deadline 0.5

      undergrowth plan --method fedavg --method fedbuff --data cifar10 --model wrn-40-1 --fleet phones -o plan.html
    """
    from undergrowth.report.plan_page import write_plan_page
    from undergrowth.runs.config import parse_experiment
    from undergrowth.runs.planning import Outline, default_methods, describe_left_out, plan_rows, population_or_outline

    methods = list(dict.fromkeys(method or ()))
    flags = {
        "method": methods[0] if methods else None,  # method options in -s belong to the first method
        "data": data, "partition": partition, "model": model, "clients": clients, "fleet": fleet,
        "deadline": deadline, "topology": topology, "epochs": epochs, "batch": batch, "lr": lr,
    }  # fmt: skip
    raw, dropped = run.build_raw_experiment(file, settings or [], flags)
    run.print_dropped(dropped, file)
    planned = parse_experiment(raw)
    population = population_or_outline(planned)
    notes = list(getattr(getattr(population, "dataset", None), "notes", ()))
    if isinstance(population, Outline):
        notes.append(
            f"data set '{population.name}' is not on this machine: the plan assumes its published size in equal parts, "
            f"{population.samples} samples on each of {population.clients} devices"
        )
    if planned.start.trains:
        notes.append(f"not in these prices: {planned.start}, before the first round")
    left_out: dict[str, str] = {}
    found = plan_rows(planned, methods, population, left_out=left_out)
    rows = list(_show_progress(found, len(methods or default_methods(planned))))
    notes += describe_left_out(left_out)
    path = write_plan_page(rows, planned, notes, target) if target is not None else None
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    if json:
        print_json(rows)
    else:
        _print_plan(rows, planned)
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


def _print_plan(rows: list[dict[str, Any]], planned: Experiment) -> None:
    from undergrowth.report.plan_page import COLUMNS, heading, row_cells
    from undergrowth.report.tables import count, table
    from undergrowth.runs.planning import takes_part

    able = takes_part(rows)
    shown: list[tuple[Any, ...]] = []
    for name, group in groupby(rows, key=lambda row: row["method"]):
        members = list(group)
        shown += [(name if place == 0 else "", *row_cells(row)) for place, row in enumerate(members)]
        total = count(sum(row["devices"] for row in members))
        blank = [""] * (len(COLUMNS) - 4)
        shown.append(("", "together", total, *blank, f"{count(able[name])} of {total}"))
        shown.append(("",) * len(COLUMNS))
    screen = console()
    screen.print(heading(planned))
    screen.print(table(COLUMNS, shown[:-1], right=(*range(2, 9), 10)))
