"""A reproduced table as Markdown, with all that is needed to judge it and to run it again."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Sequence
from datetime import date

import torch

from undergrowth import __version__
from undergrowth.reproduce.findings import Finding, Report
from undergrowth.reproduce.table import Figure

NOTHING = "–"


def page(report: Report, command: str, device: str) -> str:
    """The whole page."""
    table = report.table
    parts = [
        f"# Table {' and '.join(table.tables)}: {table.title}",
        f"{table.source}. Every cell: ours / published, the best test accuracy over all rounds in per cent, with the "
        "standard deviation over seeds.",
        "\n".join(_lines(*grid(report))),
        "## Orderings",
        "\n".join(f"- {verdict} — “{verdict.says}”" for verdict in report.verdicts),
        "## What it cost",
        "Compute and traffic of all devices in all rounds, mean over seeds; pretraining is not in it.",
        "\n".join(_lines(*costs(report))),
        "## How",
        "\n".join(f"- {line}" for line in conditions(report, command, device)),
    ]
    for title, reasons in (("Left out", report.left_out), ("Failed", report.failed)):
        if reasons:
            parts += [f"## {title}", "\n".join(f"- {cell}: {why}" for cell, why in reasons.items())]
    return "\n\n".join(parts) + "\n"


def grid(report: Report) -> tuple[list[str], list[list[str]]]:
    """Titles and rows of what was run, each figure beside the published one."""
    return _grid(report, lambda each: beside(each.ours, each.cell.published))


def costs(report: Report) -> tuple[list[str], list[list[str]]]:
    """The same with what it cost the devices."""
    return _grid(report, lambda each: NOTHING if each.cost is None else f"{each.cost}")


def _grid(report: Report, told: Callable[[Finding], str]) -> tuple[list[str], list[list[str]]]:
    found = {(each.cell.row, each.cell.column): each for each in report.findings}
    columns = [column for column in report.table.columns if any(place[1] == column for place in found)]
    rows = []
    for row in report.table.rows:
        places = [found.get((row, column)) for column in columns]
        if any(places):
            rows.append([row, *(told(each) if each else NOTHING for each in places)])
    return ["", *columns], rows


def beside(ours: Figure | None, published: Figure | None) -> str:
    return f"{NOTHING if ours is None else ours} / {NOTHING if published is None else published}"


def conditions(report: Report, command: str, device: str) -> list[str]:
    """How the figures came about."""
    seeds = sorted({len(each.values) for each in report.findings if each.values})
    return [
        f"`{command}`, {date.today().isoformat()}, undergrowth {__version__}, torch {torch.__version__}",
        machine(device),
        f"scale {report.scale}, seeds: {' or '.join(map(str, seeds)) or 'none'}",
        *report.table.scale(report.scale).notes,
        *report.table.notes,
    ]


def machine(device: str) -> str:
    """What the figures were computed on."""
    cores = f"{platform.machine()}, {os.cpu_count()} cores"
    if torch.device(device).type == "cuda" and torch.cuda.is_available():
        return f"{torch.cuda.get_device_name(device)}, matrix products in TF32; {cores}"
    return cores


def _lines(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
