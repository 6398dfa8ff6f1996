"""The cells of a table at a scale, each with the experiment that produces its figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from undergrowth.core import InputError
from undergrowth.reproduce.table import CellSettings, Figure, Raw, Table, matches, matches_cell
from undergrowth.sweeps.layers import merge_layers, merge_section

@dataclass(frozen=True, eq=False)  # compared by identity, so that a cell can be a dictionary key
class Cell:
    """One figure of a table, and the experiment that produces it."""

    row: str
    column: str
    raw: Raw
    metric: str
    published: Figure
    starts: tuple[Raw, ...] = ()  # alternative pretraining experiments; the first whose data is available is used

    @property
    def name(self) -> str:
        return f"{self.row}/{self.column}"


def build_cells(table: Table, scale: str, only: str | None = None) -> list[Cell]:
    """The cells of `table` at `scale`. `only` is a pattern such as FedAvg*/CIFAR-10*; either side may be omitted."""
    patterns = table.scale(scale).only
    cells = [
        _build_cell(table, scale, row, column, figure)
        for (row, column), figure in table.figures.items()
        if any(matches_cell(row, column, pattern) for pattern in patterns) and matches_cell(row, column, only or "*")
    ]
    if not cells:
        raise InputError(
            f"--only '{only}' matches no cell of table {table.name} at scale {scale}; write ROW/COLUMN with the rows "
            f"{', '.join(table.rows)} and the columns {', '.join(table.columns)}; * matches anything"
        )
    return cells


def _build_cell(table: Table, scale: str, row: str, column: str, published: Figure) -> Cell:
    scaled = table.scale(scale)
    raw = merge_layers(
        table.experiment, table.columns[column], table.rows[row], *_matching(table.cells, row, column),
        scaled.experiment, *_matching(scaled.cells, row, column),
    )  # fmt: skip
    metric, start = raw.pop("metric", "accuracy"), raw.pop("start", None)
    starts: tuple[Raw, ...] = ()
    if start:
        merged = merge_layers({"model": raw["model"]}, table.starts[start], scaled.starts.get(start, {}))
        sources = merged["data"] if isinstance(merged["data"], list) else [merged["data"]]
        starts = tuple(_replace_data({**merged, "data": source}, scaled.data) for source in sources)
    return Cell(row, column, _replace_data(raw, scaled.data), metric, published, starts)


def _matching(settings: Iterable[CellSettings], row: str, column: str) -> list[Raw]:
    return [each.experiment for each in settings if matches(row, each.rows) and matches(column, each.columns)]


def _replace_data(raw: Raw, replacements: Mapping[str, Raw]) -> Raw:
    for name, section in data_sections(raw).items():
        raw = merge_layers(raw, {name: replacements.get(data_source(section), {})})
    return raw


def data_sections(raw: Raw) -> dict[str, Raw]:
    """The sections of `raw` that name a data set: `data`, and `public` if the server uses another data set."""
    sections = {name: merge_section(name, None, raw[name]) for name in ("data", "public") if name in raw}
    return {name: section for name, section in sections.items() if isinstance(section, dict) and "name" in section}


def data_source(section: Mapping[str, Any]) -> str:
    """The name that `--data-path` uses for the files of a data section.

    For a data set of this package, this is its name. For other files, `path` in the table holds the name that
    `--data-path` uses, and `name` holds the file format.
    """
    return str(section.get("path") or section["name"])
