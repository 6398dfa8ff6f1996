"""A reproduced table as a Markdown page, with everything needed to judge it and to run it again."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Sequence
from datetime import date

import torch

from undergrowth import __version__
from undergrowth.report.tables import NO_VALUE
from undergrowth.reproduce.results import CellResult, TableResult

Grid = tuple[list[str], list[list[str]]]  # column titles, and rows of cells


def render_page(result: TableResult, command: str, torch_device: str) -> str:
    """The Markdown page of `result`. `command` is the one that made it, `torch_device` its torch device."""
    table = result.table
    parts = [
        f"# Table {' and '.join(table.tables)}: {table.title}",
        f"{table.source}. Every cell: ours / published, the best test accuracy over all rounds in per cent, with the "
        "standard deviation over seeds.",
        "\n".join(_markdown_lines(*accuracy_grid(result))),
        "## Orderings",
        "\n".join(f"- {ordering} — “{ordering.claim}”" for ordering in result.orderings),
        "## Costs",
        "Compute and traffic of all devices in all rounds, mean over seeds, without pretraining.",
        "\n".join(_markdown_lines(*cost_grid(result))),
        "## Conditions",
        "\n".join(f"- {line}" for line in conditions(result, command, torch_device)),
    ]
    for title, reasons in (("Left out", result.left_out), ("Failed", result.failed)):
        if reasons:
            parts += [f"## {title}", "\n".join(f"- {cell}: {reason}" for cell, reason in reasons.items())]
    return "\n\n".join(parts) + "\n"


def accuracy_grid(result: TableResult) -> Grid:
    """The cells as `ours / published`."""
    return _grid(result, lambda each: f"{each.ours or NO_VALUE} / {each.cell.published}")


def cost_grid(result: TableResult) -> Grid:
    """The cells as compute and traffic of all devices."""
    return _grid(result, lambda each: f"{each.cost or NO_VALUE}")


def _grid(result: TableResult, format_cell: Callable[[CellResult], str]) -> Grid:
    cells = {(each.cell.row, each.cell.column): each for each in result.cells}
    columns = [column for column in result.table.columns if any(place[1] == column for place in cells)]
    rows = []
    for row in result.table.rows:
        row_cells = [cells.get((row, column)) for column in columns]
        if any(row_cells):
            rows.append([row, *(format_cell(each) if each else NO_VALUE for each in row_cells)])
    return ["", *columns], rows


def conditions(result: TableResult, command: str, torch_device: str) -> list[str]:
    """Command, date, versions, machine, scale, seeds and notes of a result, one line each."""
    seeds = sorted({len(each.values) for each in result.cells if each.values})
    return [
        f"`{command}`, {date.today().isoformat()}, undergrowth {__version__}, torch {torch.__version__}",
        machine(torch_device),
        f"scale {result.scale}, seeds: {' or '.join(map(str, seeds)) or 'none'}",
        *result.table.scale(result.scale).notes,
        *result.table.notes,
    ]


def machine(torch_device: str) -> str:
    """The hardware behind `torch_device`."""
    cores = f"{platform.machine()}, {os.cpu_count()} cores"
    if torch.device(torch_device).type == "cuda" and torch.cuda.is_available():
        return f"{torch.cuda.get_device_name(torch_device)}, matrix products in TF32; {cores}"
    return cores


def _markdown_lines(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
