"""`undergrowth reproduce`: runs a published table again and compares the figures."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from undergrowth.cli.exit_codes import FAILED, INTERRUPTED, CommandError
from undergrowth.cli.output import AsJson, console, print_json

if TYPE_CHECKING:
    from undergrowth.reproduce import TableResult
    from undergrowth.sweeps.jobs import Job


def reproduce(
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="Number of the table, such as 4.3.")] = None,
    scale: Annotated[
        str,
        typer.Option(metavar="NAME", help="full: as published; small: minutes on a GPU; smoke: seconds, on digits."),
    ] = "smoke",
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Number of seeds per cell. (Default: set by the scale.)")
    ] = None,
    data_path: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FOLDER", help="Folder or file of a data set. Repeatable.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="ROW/COLUMN", help="Run only matching cells; * matches anything: 'FedAvg*/CIFAR*'."),
    ] = None,
    jobs: Annotated[int, typer.Option(metavar="N", help="Number of runs at a time, each in a process.")] = 1,
    device: Annotated[str, typer.Option(metavar="NAME", help="Torch device: cpu, cuda or cuda:0.")] = "cpu",
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="Engine. (Default: serial on a CPU, vector on a GPU.)")
    ] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder for runs.")] = "runs",
    target: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE.md", help="Also write a Markdown page.")
    ] = None,
    json: AsJson = False,
) -> None:
    """List the tables. With TABLE: run it and print our figures beside the published ones.

    Each cell and seed is one run. If the command is repeated, it reuses finished runs and resumes interrupted ones.

    Examples:

      undergrowth reproduce 4.3

      undergrowth reproduce 6.8 --scale small --device cuda --jobs 8 --data-path cifar10=~/data/cifar10 -o table.md
    """
    from undergrowth.reproduce import find_table, markdown
    from undergrowth.reproduce.data_paths import parse_data_paths
    from undergrowth.reproduce.reproduction import data_sources, reproduce_table

    if table is None:
        _print_tables(json)
        return
    published = find_table(table)
    known = {source for each in published.scales for source in data_sources(published, each)}
    paths = parse_data_paths(data_path or [], known)
    if target is not None and not Path(target).expanduser().resolve().parent.is_dir():
        from undergrowth.core import InputError

        raise InputError(f"--output '{target}': there is no folder '{Path(target).parent}'")
    try:
        with _show_progress() as hooks:
            result = reproduce_table(
                table, scale, seeds=seeds, paths=paths, device=device, engine=engine, only=only, out=out, jobs=jobs,
                **hooks,
            )  # fmt: skip
    except KeyboardInterrupt:
        raise CommandError(INTERRUPTED, "interrupted: the same command continues where it stopped") from None
    command = shlex.join(["undergrowth", *sys.argv[1:]])
    if target is not None:
        Path(target).expanduser().write_text(markdown.render_page(result, command, device), encoding="utf-8")
    conditions = markdown.conditions(result, command, device)
    if json:
        print_json(_json_result(result, conditions))
    else:
        _print_result(result, conditions, target)
    if result.failed:
        cell, reason = next(iter(result.failed.items()))
        message = f"failed: {len(result.failed)} cells of table {published.name}, the first {cell}: {reason}"
        raise CommandError(FAILED, message)


@contextmanager
def _show_progress() -> Iterator[dict[str, Callable[..., None]]]:
    """Yield the hooks of `reproduce_table` that show a progress bar on standard error, if that is a terminal."""
    from rich import progress

    if not sys.stderr.isatty():
        yield {}
        return
    columns = (
        progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn(),
        progress.TextColumn("runs"), progress.TimeElapsedColumn(), progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
    )  # fmt: skip
    fractions: dict[str, float] = {}
    with progress.Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def on_plan(jobs: list[Job]) -> None:
            bar.update(task, total=len({each.key for job in jobs for each in (job, job.start) if each}))

        def on_progress(job: Job, fraction: float) -> None:
            fractions[job.key] = fraction
            bar.update(task, completed=sum(fractions.values()), description=f"last: {job.raw['method']['name']}")

        yield {"on_plan": on_plan, "on_progress": on_progress}


def _print_tables(json: bool) -> None:
    from undergrowth.report.tables import table
    from undergrowth.reproduce import SCALES, load_tables
    from undergrowth.reproduce.reproduction import count_runs, data_sources

    rows: list[dict[str, Any]] = [
        {
            "table": " ".join(each.tables), "title": each.title, "source": each.source,
            "data": sorted(data_sources(each, "full")), "runs": {scale: count_runs(each, scale) for scale in SCALES},
        }
        for each in load_tables().values()
    ]  # fmt: skip
    if json:
        print_json(rows)
        return
    shown = [(row["table"], row["title"], ", ".join(row["data"]), *row["runs"].values()) for row in rows]
    columns = ("table", "title", "data", *(f"runs, {scale}" for scale in SCALES))
    console().print(table(columns, shown, right=(3, 4, 5)))


def _print_result(result: TableResult, conditions: list[str], target: str | None) -> None:
    from undergrowth.report.tables import table
    from undergrowth.reproduce.markdown import accuracy_grid, cost_grid

    screen = console()
    columns, rows = accuracy_grid(result)
    screen.print(f"Table {' and '.join(result.table.tables)}: {result.table.title}, ours / published in per cent")
    screen.print(table(columns, rows, right=range(1, len(columns))))
    for ordering in result.orderings:
        screen.print(f"{ordering}")
    screen.print("\nCompute and traffic of all devices")
    columns, rows = cost_grid(result)
    screen.print(table(columns, rows, right=range(1, len(columns))))
    screen.print()
    for line in conditions:
        screen.print(f"note: {line}")
    for title, reasons in (("left out", result.left_out), ("failed", result.failed)):
        for cell, reason in reasons.items():
            screen.print(f"{title}: {cell}: {reason}")
    if target is not None:
        screen.print(f"wrote the page to '{target}'")


def _json_result(result: TableResult, conditions: list[str]) -> dict[str, Any]:
    return {
        "table": list(result.table.tables),
        "title": result.table.title,
        "scale": result.scale,
        "cells": [
            {
                "row": each.cell.row, "column": each.cell.column, "values": each.values, "runs": each.runs,
                "ours": each.ours and each.ours._asdict(), "cost": each.cost and each.cost._asdict(),
                "published": each.cell.published._asdict(),
            }
            for each in result.cells
        ],
        "orderings": [asdict(each) for each in result.orderings],
        "left_out": dict(result.left_out),
        "failed": dict(result.failed),
        "notes": conditions,
    }  # fmt: skip
