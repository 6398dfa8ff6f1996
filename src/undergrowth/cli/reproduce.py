"""`undergrowth reproduce`: runs a published table again and compares the figures."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from undergrowth.cli.exit_codes import FAILED, INTERRUPTED, CommandError
from undergrowth.cli.output import AsJson, console, print_json

if TYPE_CHECKING:
    from undergrowth.reproduce import TableResult


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
    jobs: Annotated[
        str, typer.Option(metavar="N|auto", help="Number of runs at a time; auto: as many as are worthwhile here.")
    ] = "1",
    more_seeds: Annotated[
        bool, typer.Option(help="Four seeds for cells whose gap is below two standard errors.")
    ] = False,
    estimate: Annotated[bool, typer.Option(help="Only say which runs are missing and how long they take.")] = False,
    device: Annotated[str, typer.Option(metavar="NAME", help="Torch device: cpu, cuda or cuda:0.")] = "cpu",
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="Engine. (Default: serial on a CPU, vector on a GPU.)")
    ] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder for runs.")] = "runs",
    target: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="Also write a page: FILE.md, or FILE.html with plots."),
    ] = None,
    json: AsJson = False,
) -> None:
    """List the tables and figures. With TABLE: run it and print our numbers beside the published ones.

    Each cell and seed is one run. If the command is repeated, it reuses finished runs and resumes interrupted ones.

    Examples:

      undergrowth reproduce 4.3

      undergrowth reproduce figure-4.9 -o figure.html

      undergrowth reproduce 6.8 --scale small --device cuda --jobs auto --data-path cifar10=~/data/cifar10 -o table.md
    """
    from undergrowth.cli.reproduce_progress import print_workload, show_progress
    from undergrowth.reproduce import Reproduction, find_table, markdown
    from undergrowth.reproduce.data_paths import parse_data_paths
    from undergrowth.reproduce.html_page import render_html
    from undergrowth.reproduce.reproduction import data_sources

    if table is None:
        _print_tables(json)
        return
    published = find_table(table)
    known = {source for each in published.scales for source in data_sources(published, each)}
    paths = parse_data_paths(data_path or [], known)
    _check_target(target)
    count = int(jobs) if jobs.isdecimal() else jobs
    task = Reproduction(table, scale, seeds, paths, device, engine, only, out, count)
    if estimate:
        print_workload(task.estimate(), json)
        return
    try:
        with show_progress() as hooks:
            result = task.run(more_seeds, **hooks)
    except KeyboardInterrupt:
        raise CommandError(INTERRUPTED, "interrupted: the same command continues where it stopped") from None
    command = shlex.join(["undergrowth", *sys.argv[1:]])
    if target is not None:
        render = render_html if target.endswith(".html") else markdown.render_page
        Path(target).expanduser().write_text(render(result, command, device), encoding="utf-8")
    conditions = markdown.conditions(result, command, device)
    if json:
        print_json(_json_result(result, conditions))
    else:
        _print_result(result, conditions, target)
    if result.failed:
        cell, reason = next(iter(result.failed.items()))
        message = f"failed: {len(result.failed)} cells of {published.label}, the first {cell}: {reason}"
        raise CommandError(FAILED, message)


def _check_target(target: str | None) -> None:
    from undergrowth.core import InputError

    if target is None:
        return
    if not target.endswith((".md", ".html")):
        raise InputError(f"--output '{target}' must end in .md or .html")
    if not Path(target).expanduser().resolve().parent.is_dir():
        raise InputError(f"--output '{target}': there is no folder '{Path(target).parent}'")


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
    from undergrowth.reproduce.markdown import cost_grid, number_grid, seeds_line
    from undergrowth.reproduce.settings import settings_lines

    screen = console()
    columns, rows = number_grid(result)
    screen.print(f"{result.table.label}: {result.table.title}, ours / published in {result.table.unit}")
    screen.print(table(columns, rows, right=range(1, len(columns))))
    for ordering in result.orderings:
        screen.print(f"{ordering}")
    screen.print("\nCompute and traffic of all devices")
    columns, rows = cost_grid(result)
    screen.print(table(columns, rows, right=range(1, len(columns))))
    screen.print()
    if seeds := seeds_line(result):
        screen.print(seeds)
    for line in settings_lines(result.cells):
        screen.print(f"settings: {line}")
    for line in conditions:
        screen.print(f"note: {line}")
    for title, reasons in (("left out", result.left_out), ("failed", result.failed)):
        for cell, reason in reasons.items():
            screen.print(f"{title}: {cell}: {reason}")
    if target is not None:
        screen.print(f"wrote the page to '{target}'")


def _json_result(result: TableResult, conditions: list[str]) -> dict[str, Any]:
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
        "notes": conditions,
    }  # fmt: skip
