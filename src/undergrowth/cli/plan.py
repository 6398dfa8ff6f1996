"""`undergrowth plan`: who could take part, how, at what price, by the deadline; nothing is trained."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Annotated, Any

import typer

from undergrowth.cli.output import AsJson, console, print_json
from undergrowth.cli.run import (
    Clients,
    DataName,
    Deadline,
    ExperimentFile,
    FleetName,
    ModelName,
    Settings,
    experiment_tree,
    say_left_out,
)


def plan(
    file: ExperimentFile = None,
    method: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="As often as you like. (Default: all methods.)")
    ] = None,
    data: DataName = None,
    model: ModelName = None,
    clients: Clients = None,
    fleet: FleetName = None,
    deadline: Deadline = None,
    settings: Settings = None,
    json: AsJson = False,
    target: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE.html", help="Write it as a page with pictures, too.")
    ] = None,
) -> None:
    """Say what one round would cost every class of devices with every method, and who could take part.

    A row is about the device of its class whose round takes the median time.

    Examples:

      undergrowth plan --fleet mixed-edge --deadline 0.5

      undergrowth plan --method fedavg --method fedbuff --data cifar10 --model wrn-40-1 --fleet phones -o plan.html
    """
    from undergrowth.methods import METHODS
    from undergrowth.report.plan_page import write
    from undergrowth.runs.config import parse_experiment
    from undergrowth.runs.planning import Outline, plan_rows, population_or_outline

    methods = list(dict.fromkeys(method or ()))
    # Options in the settings are those of the method that is named first.
    given = {
        "method": methods[0] if methods else None, "data": data, "model": model, "clients": clients, "fleet": fleet,
        "deadline": deadline,
    }  # fmt: skip
    tree, left_out = experiment_tree(file, settings or [], given)
    say_left_out(left_out, file)
    chosen = parse_experiment(tree)
    population = population_or_outline(chosen)
    notes = []
    if isinstance(population, Outline):
        notes.append(
            f"data set '{population.name}' is not on this machine: planned with its published size in equal shares, "
            f"{population.samples} samples on each of {population.clients} devices"
        )
    rows = list(_watched(plan_rows(chosen, methods, population), len(methods) or None))
    unfit = [] if methods else [name for name in _on_devices() if name not in {row["method"] for row in rows}]
    waiting = [] if chosen.public.given else [name for name in unfit if METHODS[name].needs_public]
    if waiting:
        notes.append(f"left out, because they need data at the server (-s public=0.1): {', '.join(waiting)}")
    unfit = [name for name in unfit if name not in waiting]
    if unfit:
        notes.append(f"left out, because they cannot do with model '{chosen.model.name}': {', '.join(unfit)}")
    path = write(rows, chosen, notes, target) if target is not None else None
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    if json:
        print_json(rows)
    else:
        _tell(rows, chosen)
    if path is not None:
        typer.echo(f"the page is in '{path}'", err=True)


def _on_devices() -> list[str]:
    from undergrowth.methods import METHODS

    return [name for name, kind in METHODS.items() if not kind.pooled]


def _watched(rows: Iterable[dict[str, Any]], methods: int | None) -> Iterator[dict[str, Any]]:
    """Shows which method is looked at, on standard error, where someone sees it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    if not sys.stderr.isatty():
        yield from rows
        return
    total = methods or len(_on_devices())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("planning", total=total)
        for done, (name, group) in enumerate(groupby(rows, key=lambda row: row["method"]), 1):
            yield from group
            bar.update(task, description=f"planning: {name}", completed=done)


def _tell(rows: list[dict[str, Any]], chosen: Any) -> None:
    from undergrowth.report.plan_page import COLUMNS, cells, heading
    from undergrowth.report.tables import count, table
    from undergrowth.runs.planning import takes_part

    able = takes_part(rows)
    shown: list[tuple[Any, ...]] = []
    for name, group in groupby(rows, key=lambda row: row["method"]):
        members = list(group)
        shown += [(name if place == 0 else "", *cells(row)) for place, row in enumerate(members)]
        total = count(sum(row["devices"] for row in members))
        blank = [""] * (len(COLUMNS) - 4)
        shown.append(("", "together", total, *blank, f"{count(able[name])} of {total}"))
        shown.append(("",) * len(COLUMNS))
    screen = console()
    screen.print(heading(chosen))
    screen.print(table(COLUMNS, shown[:-1], right=(*range(2, 9), 10)))
