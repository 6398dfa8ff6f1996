"""`undergrowth reproduce`: runs published tables again and compares the figures."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from undergrowth.cli.exit_codes import FAILED, INTERRUPTED, CommandError, one_line
from undergrowth.cli.output import AsJson, console, print_json, print_rows

if TYPE_CHECKING:
    from undergrowth.reproduce import Results, TableResult

ALL = "all"  # in place of the names of tables
_DATA_WIDTH = 36  # of the data sets in the list, so that titles stay on one line


def reproduce(
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE...", help="Tables, such as 4.3 or figure-4.9; all: every one.")
    ] = None,
    scale: Annotated[
        str,
        typer.Option(metavar="NAME", help="full: as published; small: minutes on a GPU; smoke: seconds, on digits."),
    ] = "smoke",
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Number of seeds per cell. (Default: set by the scale.)")
    ] = None,
    data_path: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FOLDER", help="Folder or file of a data set or of weights. Repeatable."),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="ROW/COLUMN", help="Run only matching cells; * matches anything: 'FedAvg*/CIFAR*'."),
    ] = None,
    jobs: Annotated[
        str, typer.Option(metavar="N|auto", help="Number of runs at a time; auto: as many as are worthwhile here.")
    ] = "1",
    more_seeds: Annotated[
        bool, typer.Option(help="Four seeds for cells whose gap is below two standard errors.")
    ] = False,
    estimate: Annotated[bool, typer.Option(help="Only say which runs are missing and how long they take.")] = False,
    minutes: Annotated[
        float | None,
        typer.Option(metavar="N", help="Time limit: start no run after it, and stop others at the end of their round."),
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="Torch device: cpu, cuda or cuda:0.")] = "cpu",
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="Engine. (Default: serial on a CPU, vector on a GPU.)")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "-s",
            "--set",
            metavar="PATH=VALUE",
            help="A setting of all cells instead of the table's, such as run.precision=bf16. Repeatable.",
        ),
    ] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder for runs.")] = "runs",
    target: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="PATH",
            help="Also write a page: FILE.md, or FILE.html with plots; a FOLDER gets a Markdown page for each table. "
            "Figures have their plots as .svg beside a Markdown page.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """List the tables and figures. With TABLE: run them and print our numbers beside the published ones.

    Each cell and seed is one run; runs of all tables share the jobs. If the command is repeated, it reuses finished
    runs and resumes interrupted ones.

    Examples:

      undergrowth reproduce 4.3

      undergrowth reproduce figure-4.9 -o figure.html

      undergrowth reproduce 6.8 --scale small --device cuda --jobs auto --data-path cifar10=~/data/cifar10 -o table.md

      undergrowth reproduce 4.3 --scale full --only '*/CIFAR-10, Diri 0.1' -s data.partition=dirichlet:0.1 --device cuda

      undergrowth reproduce all --scale small --device cuda --jobs auto --minutes 9 -o pages
    """
    from undergrowth.cli.reproduce_progress import print_workload, show_progress
    from undergrowth.reproduce import Reproduction, load_tables
    from undergrowth.reproduce.data_paths import parse_data_paths
    from undergrowth.reproduce.page_files import page_files, write_page
    from undergrowth.reproduce.reproduction import data_sources
    from undergrowth.runs.experiment_file import assign_text

    if not tables:
        _print_tables(json)
        return
    named = [each for name in tables for each in (load_tables() if name == ALL else [name])]
    count = int(jobs) if jobs.isdecimal() else jobs
    changes: dict[str, Any] = {}
    for setting in settings or []:
        assign_text(changes, setting)
    task = Reproduction(
        named, scale, seeds=seeds, device=device, engine=engine, only=only, out=out, jobs=count, minutes=minutes,
        changes=changes,
    )  # fmt: skip
    known = {source for each in task.published.values() for size in each.scales for source in data_sources(each, size)}
    task = replace(task, paths=parse_data_paths(data_path or [], known))
    page_of = page_files(target, list(task.published))
    if estimate:
        print_workload(task.estimate(), json)
        return
    command = shlex.join(["undergrowth", *sys.argv[1:]])

    def show(result: TableResult) -> None:
        page = page_of.get(result.table.name)
        if page:
            write_page(result, command, device, page)
        if json:
            print_json(_json_result(result, command, device))
        else:
            _print_result(result, command, device, page)

    try:
        with show_progress() as hooks:
            results = task.run(more_seeds, on_result=show, **hooks)
    except KeyboardInterrupt:
        raise CommandError(INTERRUPTED, "interrupted: the same command continues where it stopped") from None
    _report_shortcomings(results)


def _report_shortcomings(results: Results) -> None:
    """End the command with an error if a cell of a table failed, or was not finished in time."""
    failed = [f"{name}: {one_line(error)}" for name, error in results.failed.items()]
    for result in results.tables.values():
        if result.failed:
            cell, reason = next(iter(result.failed.items()))
            failed.append(f"{len(result.failed)} cells of {result.table.label}, the first {cell}: {reason}")
    late = [result.table.name for result in results.tables.values() if result.unfinished]
    time_over = f"the time limit was reached, with unfinished runs of {', '.join(late)}: the same command continues"
    if failed:
        raise CommandError(FAILED, f"failed: {'; '.join([*failed, *([time_over] if late else [])])}")
    if late:
        raise CommandError(INTERRUPTED, time_over)


def _print_tables(json: bool) -> None:
    from undergrowth.reproduce import SCALES, load_tables
    from undergrowth.reproduce.reproduction import count_runs, data_sources

    rows: list[dict[str, Any]] = [
        {
            "table": " ".join(each.tables), "title": each.title, "source": each.source,
            "data": sorted(data_sources(each, "full")), "runs": {scale: count_runs(each, scale) for scale in SCALES},
        }
        for each in load_tables().values()
    ]  # fmt: skip
    shown = [
        (row["table"], row["title"], "\n".join(wrap(", ".join(row["data"]), _DATA_WIDTH)), *row["runs"].values())
        for row in rows
    ]
    columns = ("table", "title", "data", *(f"runs, {scale}" for scale in SCALES))
    print_rows(rows, json, columns, shown, right=(3, 4, 5))


def _print_result(result: TableResult, command: str, device: str, page: Path | None) -> None:
    from undergrowth.report.tables import table
    from undergrowth.reproduce.page_content import (
        conditions,
        cost_grid,
        number_grid,
        ordering_lines,
        seeds_line,
        shortcomings,
    )
    from undergrowth.reproduce.settings import settings_lines

    screen = console()
    columns, rows = number_grid(result)
    what = "ours" if result.table.is_question else "ours / published"
    screen.print(f"{result.table.label}: {result.table.title}, {what} in {result.table.unit}")
    screen.print(table(columns, rows, right=range(1, len(columns))))
    for line in ordering_lines(result, claims=False):
        screen.print(line)
    screen.print("\nCompute and traffic of all devices")
    columns, rows = cost_grid(result)
    screen.print(table(columns, rows, right=range(1, len(columns))))
    screen.print()
    if seeds := seeds_line(result):
        screen.print(seeds)
    for line in settings_lines(result.cells):
        screen.print(f"settings: {line}")
    for line in conditions(result, command, device):
        screen.print(f"note: {line}")
    for title, lines in shortcomings(result).items():
        for line in lines:
            screen.print(f"{title.lower()}: {line}")
    if page is not None:
        screen.print(f"wrote the page to '{page}'")


def _json_result(result: TableResult, command: str, device: str) -> dict[str, Any]:
    from undergrowth.reproduce.page_content import conditions
    from undergrowth.reproduce.settings import settings_lines

    return {
        "table": list(result.table.tables),
        "title": result.table.title,
        "scale": result.scale,
        "unit": result.table.unit,
        "settings": settings_lines(result.cells),
        "cells": [
            {
                "row": each.cell.row, "column": each.cell.column, "values": each.values, "seeds": each.seeds,
                "runs": each.runs, "ours": each.ours and each.ours._asdict(), "cost": each.cost and each.cost._asdict(),
                "published": each.published and each.published._asdict(), "curve": each.curve,
            }
            for each in result.cells
        ],
        "orderings": [asdict(each) for each in result.orderings],
        "left_out": dict(result.left_out),
        "failed": dict(result.failed),
        "unfinished": dict(result.unfinished),
        "notes": conditions(result, command, device),
    }  # fmt: skip
