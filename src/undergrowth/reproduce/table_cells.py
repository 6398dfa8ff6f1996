"""The cells of a table at a scale, each with the experiment that produces its figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from undergrowth.core import InputError
from undergrowth.reproduce.table import CellSettings, Place, Raw, Scale, Table, matches, matches_cell
from undergrowth.runs.relative_accuracy import FEDERATED
from undergrowth.sweeps.layers import merge_layers, merge_section

_SECTIONS_OF_STARTS = ("model", "data", "train")  # that a pretraining takes from the table


@dataclass(frozen=True)
class Pretraining:
    """An experiment whose final weights initialise a model, and the pretraining that it continues."""

    raw: Raw
    source: str  # the data set of the published experiment, by the name that `--data-path` uses
    keep_head: bool
    after: Pretraining | None = None

    @property
    def chain(self) -> list[Pretraining]:
        """This pretraining and those before it, the first one first."""
        return [*(self.after.chain if self.after else ()), self]


@dataclass(frozen=True, eq=False)  # compared by identity, so that a cell can be a dictionary key
class Cell:
    """One number of a table, and the experiment that produces it."""

    row: str
    column: str
    raw: Raw
    metric: str
    starts: tuple[Pretraining, ...] = ()  # of the model; the first whose data is available is used
    device_start: Pretraining | None = None  # of the models of the ladder

    @property
    def name(self) -> str:
        return f"{self.row}/{self.column}"

    @property
    def place(self) -> Place:
        return self.row, self.column

    @property
    def experiments(self) -> list[Raw]:
        """The experiment of the cell and those of all its pretrainings."""
        starts = (*self.starts, *([self.device_start] if self.device_start else ()))
        return [self.raw, *(each.raw for start in starts for each in start.chain)]


def build_cells(table: Table, scale: str, only: str | None = None, changes: Raw | None = None) -> list[Cell]:
    """The cells of `table` at `scale`. `only` is a pattern such as FedAvg*/CIFAR-10*; either side may be omitted.

    `changes`: settings that all cells have instead of those of the table; pretrainings do not change.
    """
    patterns = table.scale(scale).only
    cells = [
        _build_cell(table, table.scale(scale), row, column, changes or {})
        for row, column in table.places
        if any(matches_cell(row, column, pattern) for pattern in patterns) and matches_cell(row, column, only or "*")
    ]
    if not cells:
        raise InputError(
            f"--only '{only}' matches no cell of table {table.name} at scale {scale}; write ROW/COLUMN with the rows "
            f"{', '.join(table.rows)} and the columns {', '.join(table.columns)}; * matches anything"
        )
    return cells


def _build_cell(table: Table, scale: Scale, row: str, column: str, changes: Raw) -> Cell:
    raw = merge_layers(
        table.experiment, table.columns[column], table.rows[row], *_matching(table.cells, row, column),
        scale.experiment, *_matching(scale.cells, row, column),
    )  # fmt: skip
    metric = raw.pop("metric", "accuracy").replace("MODEL", raw.pop("evaluated", FEDERATED))
    start, device_start = raw.pop("from_start", None), raw.pop("devices_from_start", None)
    starts = _pretrainings(table, scale, column, start) if start else ()
    of_devices = _pretrainings(table, scale, column, device_start)[0] if device_start else None
    return Cell(row, column, merge_layers(_with_data(raw, table, scale), changes), metric, starts, of_devices)


def _pretrainings(table: Table, scale: Scale, column: str, name: str) -> tuple[Pretraining, ...]:
    """The alternatives of a pretraining, one for each data set that it may use."""
    start = table.starts[name]
    shared = merge_layers(table.experiment, table.columns[column], scale.experiment)
    sections = {section: value for section, value in shared.items() if section in _SECTIONS_OF_STARTS}
    raw = merge_layers(sections, start.experiment, scale.starts.get(name, {}))
    sources = raw["data"] if isinstance(raw["data"], list) else [raw["data"]]
    before = _pretrainings(table, scale, column, start.after) if start.after else (None,)
    return tuple(
        Pretraining(
            _with_data({**raw, "data": section}, table, scale),
            data_source(merge_section("data", None, section)),
            start.keep_head,
            after,
        )
        for after in before
        for section in sources
    )


def _matching(settings: Iterable[CellSettings], row: str, column: str) -> list[Raw]:
    return [each.experiment for each in settings if matches(row, each.rows) and matches(column, each.columns)]


def _with_data(raw: Raw, table: Table, scale: Scale) -> Raw:
    """`raw` with the settings that the table and the scale have for its data sets."""
    for name, section in data_sections(raw).items():
        source = data_source(section)
        of_devices = table.data.get(source, {}) if name == "data" else {}
        raw = merge_layers(raw, {name: of_devices}, {name: scale.data.get(source, {})})
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
