"""`undergrowth reproduce`: a published table, run again, beside what was published."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from undergrowth.cli.endings import FAILED, INTERRUPTED, Ended
from undergrowth.cli.output import AsJson, console, print_json

if TYPE_CHECKING:
    from undergrowth.reproduce import Report


def reproduce(
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="Its number, such as 4.3.")] = None,
    scale: Annotated[
        str, typer.Option(metavar="NAME", help="full: as published; small: minutes on a GPU; smoke: seconds, digits.")
    ] = "smoke",
    seeds: Annotated[int | None, typer.Option(metavar="N", help="Runs of every cell. (Default: the scale's.)")] = None,
    data_path: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FOLDER", help="Where a data set is. As often as you like.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="ROW/COLUMN", help="Only cells that match; * is anything: 'FedAvg*/CIFAR*'.")
    ] = None,
    jobs: Annotated[int, typer.Option(metavar="N", help="Runs at the same time, each in a process of its own.")] = 1,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda or cuda:0.")] = "cpu",
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="(Default: serial on a CPU, vector on a GPU.)")
    ] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Where runs are kept.")] = "runs",
    target: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE.md", help="Write it as a Markdown page, too.")
    ] = None,
    json: AsJson = False,
) -> None:
    """List the tables; with a TABLE: run it and print our figures beside the published ones.

    Every cell and seed is a run. The same command again takes finished runs from the store and goes on with others.

    Examples:

      undergrowth reproduce 4.3

      undergrowth reproduce 6.8 --scale small --device cuda --jobs 8 --data-path cifar10=~/data/cifar10 -o table.md
    """
    from undergrowth.reproduce import find, markdown
    from undergrowth.reproduce.jobs import read_paths
    from undergrowth.reproduce.reproduction import reproduce as carry_out
    from undergrowth.reproduce.reproduction import sources_of

    if table is None:
        _list(json)
        return
    described = find(table)
    known = {source for each in described.scales for source in sources_of(described, each)}
    paths = read_paths(data_path or [], known)
    if target is not None and not Path(target).expanduser().resolve().parent.is_dir():
        from undergrowth.core import InputError

        raise InputError(f"--output '{target}': there is no folder '{Path(target).parent}'")
    try:
        with Bar() as bar:
            report = carry_out(
                table, scale, seeds=seeds, paths=paths, device=device, engine=engine, only=only, out=out, jobs=jobs,
                on_plan=bar.plan, on_share=bar.share,
            )  # fmt: skip
    except KeyboardInterrupt:
        raise Ended(INTERRUPTED, "interrupted: the same command goes on where it stopped") from None
    command = shlex.join(["undergrowth", *sys.argv[1:]])
    if target is not None:
        Path(target).expanduser().write_text(markdown.page(report, command, device), encoding="utf-8")
    if json:
        print_json(_facts(report, markdown.conditions(report, command, device)))
    else:
        _tell(report, markdown.conditions(report, command, device), target)
    if report.failed:
        cell, why = next(iter(report.failed.items()))
        raise Ended(FAILED, f"failed: {len(report.failed)} cells of table {described.name}, the first {cell}: {why}")


class Bar:
    """The jobs that are done, on standard error where someone sees it."""

    def __init__(self) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("runs"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        )  # fmt: skip
        self.shown = sys.stderr.isatty()
        self._bar = Progress(*columns, console=console(stderr=True), disable=not self.shown, transient=True)
        self._task = self._bar.add_task("starting", total=None)
        self._shares: dict[str, float] = {}

    def __enter__(self) -> Bar:
        if self.shown:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.shown:
            self._bar.stop()

    def plan(self, jobs: list[Any]) -> None:
        starts = {job.start.key for job in jobs if job.start}
        self._bar.update(self._task, total=len(starts | {job.key for job in jobs}))

    def share(self, job: Any, share: float) -> None:
        self._shares[job.key] = share
        name = job.tree["method"]["name"]
        self._bar.update(self._task, completed=sum(self._shares.values()), description=f"last: {name}")


def _list(json: bool) -> None:
    from undergrowth.report.tables import table
    from undergrowth.reproduce import SCALES, tables
    from undergrowth.reproduce.reproduction import runs_of, sources_of

    rows = [
        {
            "table": " ".join(each.tables), "title": each.title, "source": each.source,
            "data": sorted(sources_of(each, "full")), "runs": {scale: runs_of(each, scale) for scale in SCALES},
        }
        for each in tables().values()
    ]  # fmt: skip
    if json:
        print_json(rows)
        return
    shown = [(row["table"], row["title"], ", ".join(row["data"]), *row["runs"].values()) for row in rows]  # type: ignore
    columns = ("table", "what it shows", "data", *(f"runs, {scale}" for scale in SCALES))
    console().print(table(columns, shown, right=(3, 4, 5)))


def _tell(report: Report, conditions: list[str], target: str | None) -> None:
    from undergrowth.report.tables import table
    from undergrowth.reproduce.markdown import costs, grid

    screen = console()
    titles, rows = grid(report)
    screen.print(f"Table {' and '.join(report.table.tables)}: {report.table.title}, ours / published in per cent")
    screen.print(table(titles, rows, right=range(1, len(titles))))
    for verdict in report.verdicts:
        screen.print(f"{verdict}")
    screen.print("\nWhat it cost all devices, compute and traffic")
    titles, rows = costs(report)
    screen.print(table(titles, rows, right=range(1, len(titles))))
    screen.print()
    for line in conditions:
        screen.print(f"note: {line}")
    for cell, why in report.left_out.items():
        screen.print(f"left out: {cell}: {why}")
    for cell, why in report.failed.items():
        screen.print(f"failed: {cell}: {why}")
    if target is not None:
        screen.print(f"the page is '{target}'")


def _facts(report: Report, conditions: list[str]) -> dict[str, Any]:
    return {
        "table": list(report.table.tables),
        "title": report.table.title,
        "scale": report.scale,
        "cells": [
            {
                "row": each.cell.row, "column": each.cell.column, "values": each.values, "runs": each.runs,
                "ours": each.ours and each.ours._asdict(), "cost": each.cost and each.cost._asdict(),
                "published": each.cell.published and each.cell.published._asdict(),
            }
            for each in report.findings
        ],
        "orderings": [
            {
                "pair": each.pair, "says": each.says, "held": each.held, "broken": each.broken, "gap": each.gap,
                "seeds": each.seeds,
                "published_held": each.published_held, "published_gap": each.published_gap,
            }
            for each in report.verdicts
        ],
        "left_out": dict(report.left_out),
        "failed": dict(report.failed),
        "notes": conditions,
    }  # fmt: skip
