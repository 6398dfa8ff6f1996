"""What the page of a reproduced table says: everything needed to judge it and to run it again."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from datetime import date
from typing import NamedTuple

import torch

from undergrowth import __version__
from undergrowth.report.tables import NO_VALUE
from undergrowth.reproduce.orderings import MAX_SEEDS, MIN_SEEDS
from undergrowth.reproduce.results import CellResult, TableResult
from undergrowth.reproduce.settings import settings_lines

Grid = tuple[list[str], list[list[str]]]  # column titles, and rows of cells
_COSTS = "Compute and traffic of all devices in all rounds, mean over seeds, without pretraining."
_MAX_ROUNDS = 10  # shown of a learning curve


class Part(NamedTuple):
    """A part of a page. One without a title continues the part before it."""

    title: str
    text: str = ""
    table: Grid | None = None
    lines: Sequence[str] = ()


def page_parts(result: TableResult, command: str, torch_device: str) -> list[Part]:
    """The parts of the page of `result`, the first with its headline and its numbers.

    `command` is the one that made it, `torch_device` its torch device.
    """
    parts = [
        Part(f"{result.table.label}: {result.table.title}", introduction(result), number_grid(result)),
        *(Part(f"{column}: accuracy by round", table=grid) for column, grid in curve_grids(result).items()),
        Part("Orderings", lines=ordering_lines(result)),
        Part("", seeds_line(result)),
        Part("Costs", _COSTS, cost_grid(result)),
        Part("Settings", lines=settings_lines(result.cells)),
        Part("Conditions", lines=conditions(result, command, torch_device)),
        *(Part(title, lines=lines) for title, lines in shortcomings(result).items()),
    ]
    return [part for part in parts if any(part[1:])]


def introduction(result: TableResult) -> str:
    """The source of a table, and what its cells are."""
    value = "the best test accuracy over all rounds" if result.table.unit == "%" else "the value"
    unit = "per cent" if result.table.unit == "%" else result.table.unit
    if result.table.is_question:
        return (
            f"{result.table.source}. The source has no numbers. Every cell: ours in {unit}, of what the notes say, "
            "with the standard deviation over seeds."
        )
    title = (
        "" if result.scale == "full" else " The title describes the published experiment; ours is below, in Settings."
    )
    return (
        f"{result.table.source}. Every cell: ours / published, {value} in {unit} unless a note says otherwise, with "
        f"the standard deviation over seeds.{title}"
    )


def number_grid(result: TableResult) -> Grid:
    """The cells as `ours / published`. A number of models with another pretraining is not shown."""
    if result.table.is_question:
        return _grid(result, lambda each: f"{each.ours or NO_VALUE}")
    return _grid(result, lambda each: f"{each.ours or NO_VALUE} / {each.published or NO_VALUE}")


def cost_grid(result: TableResult) -> Grid:
    """The cells as compute and traffic of all devices; one column if the cells of every row are of the same runs."""
    columns, rows = _grid(result, lambda each: f"{each.cost or NO_VALUE}")
    by_row = {row: [each for each in result.cells if each.cell.row == row] for row, *_ in rows}
    same_runs = all(len({str(each.cell.experiments) for each in cells}) == 1 for cells in by_row.values())
    if len(result.cells) == len(rows) or not same_runs:  # one cell in every row, or different runs
        return columns, rows
    most_seeds = {row: max(cells, key=lambda each: len(each.costs)) for row, cells in by_row.items()}
    return ["", "all columns"], [[row, f"{each.cost or NO_VALUE}"] for row, each in most_seeds.items()]


def curve_grids(result: TableResult) -> dict[str, Grid]:
    """The learning curves of a published figure at some rounds, by column; none for a table."""
    if not result.table.is_figure or result.table.plot.kind != "rounds":
        return {}
    grids = {}
    for column in result.table.columns:
        curves = {each.cell.row: dict(each.curve) for each in result.cells if each.cell.column == column and each.curve}
        rounds = sorted({at for curve in curves.values() for at in curve})
        chosen = rounds[:: -(-len(rounds) // _MAX_ROUNDS)] if rounds else []
        shown = sorted({*chosen, *rounds[-1:]})
        rows = [
            [row, *(f"{curve[at]:.2f}" if at in curve else NO_VALUE for at in shown)] for row, curve in curves.items()
        ]
        if rows:
            grids[column] = (["", *(f"round {at}" for at in shown)], rows)
    return grids


def _grid(result: TableResult, format_cell: Callable[[CellResult], str]) -> Grid:
    cells = {each.cell.place: each for each in result.cells}
    columns = [column for column in result.table.columns if any(place[1] == column for place in cells)]
    rows = []
    for row in result.table.rows:
        row_cells = [cells.get((row, column)) for column in columns]
        if any(row_cells):
            rows.append([row, *(format_cell(each) if each else NO_VALUE for each in row_cells)])
    return ["", *columns], rows


def ordering_lines(result: TableResult, claims: bool = True) -> list[str]:
    """The orderings that were checked, with or without the authors' `claims`, and how many could not be."""
    checked = [each for each in result.orderings if each.seeds]
    lines = [f"{each} — “{each.claim}”" if claims else f"{each}" for each in checked]
    if others := len(result.orderings) - len(checked):
        orderings = "ordering needs" if others == 1 else "orderings need"
        lines.append(f"{others} {'further ' if checked else ''}{orderings} cells that were not run")
    return lines


def seeds_line(result: TableResult) -> str:
    """Which cells need more seeds; empty if none does, or if the table has one seed by its nature."""
    one_seed = result.table.scale("small").seeds < MIN_SEEDS  # columns are seeds, or numbers do not depend on them
    if result.scale == "smoke" or one_seed or not result.unsettled:
        return ""
    unsettled, names = set(result.unsettled), dict[str, None]()  # a row stands for all its cells
    for row, column in result.unsettled:
        whole = all(each.cell.place in unsettled for each in result.cells if each.cell.row == row)
        names[row if whole else f"{row}/{column}"] = None
    cells = "; ".join(names)
    return f"A gap is below two standard errors; with `--more-seeds` these cells get {MAX_SEEDS} seeds: {cells}."


def conditions(result: TableResult, command: str, torch_device: str) -> list[str]:
    """Command, date, versions, machine, scale, seeds and notes of a result, one line each."""
    seeds = sorted({len(each.values) for each in result.cells if each.values})
    return [
        f"`{command}`, {date.today().isoformat()}, undergrowth {__version__}, torch {torch.__version__}",
        machine(torch_device, sorted({each.cell.raw.get("run", {}).get("precision", "tf32") for each in result.cells})),
        f"scale {result.scale}, seeds: {' or '.join(map(str, seeds)) or 'none'}",
        *_start_notes(result),
        *result.table.scale(result.scale).notes,
        *result.table.notes,
    ]


def shortcomings(result: TableResult) -> dict[str, list[str]]:
    """The cells that are not complete, by what they lack, and how to get missing files; empty if all are."""
    reasons = {
        "Left out": result.left_out,
        "Missing files": result.missing,
        "Failed": result.failed,
        "Not finished": result.unfinished,
    }
    return {title: [f"{name}: {text}" for name, text in each.items()] for title, each in reasons.items() if each}


def _start_notes(result: TableResult) -> list[str]:
    """The data set of the pretraining, where it is not the published one."""
    others = {
        (each.start.chain[0].source, each.cell.starts[0].chain[0].source)
        for each in result.cells
        if each.start and each.start is not each.cell.starts[0]
    }
    return [
        f"pretrained on {ours}, because there was no {theirs}; published numbers are those for {ours}, if there are any"
        for ours, theirs in sorted(others)
    ]


def machine(torch_device: str, precisions: Sequence[str]) -> str:
    """The hardware behind `torch_device`, and the precision of a GPU's matrix products."""
    cores = f"{platform.machine()}, {os.cpu_count()} cores"
    if torch.device(torch_device).type == "cuda" and torch.cuda.is_available():
        return f"{torch.cuda.get_device_name(torch_device)}, precision {' and '.join(precisions)}; {cores}"
    return cores
