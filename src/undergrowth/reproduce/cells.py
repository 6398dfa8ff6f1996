"""From a table and a scale to its cells, each an experiment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from undergrowth.core import InputError
from undergrowth.reproduce.table import Figure, Layer, Special, Table, chosen, matches

# What of a section does not belong to the thing that it names, and stays when another is named.
_KEPT = {"data": ("partition", "clients", "holdout")}
_NAMED = ("method", "data", "public", "model", "fleet")


@dataclass(frozen=True, eq=False)  # one is the same as another only if it is that one
class Cell:
    """One figure of a table, and the experiment that gives it."""

    row: str
    column: str
    tree: Layer
    metric: str  # what of the run is the figure
    published: Figure | None
    starts: tuple[Layer, ...] = ()  # pretrainings to begin from: the first whose data are there

    @property
    def name(self) -> str:
        return f"{self.row}/{self.column}"


def cells(table: Table, scale: str, only: str | None = None) -> list[Cell]:
    """The cells of a table at a scale; `only` is a pattern such as FedAvg*/CIFAR-10*, whose sides may be left out."""
    size = table.scale(scale)
    found = [
        _cell(table, scale, row, column)
        for row in table.rows
        for column in table.columns
        # Where the source prints nothing, row and column do not go together.
        if table.figure(row, column)
        and any(chosen(row, column, pattern) for pattern in size.only)
        and chosen(row, column, only or "*")
    ]
    if not found:
        raise InputError(
            f"--only '{only}' leaves nothing of table {table.name} at scale {scale}; it is ROW/COLUMN with rows "
            f"{', '.join(table.rows)} and columns {', '.join(table.columns)}, and * for anything"
        )
    return found


def _cell(table: Table, scale: str, row: str, column: str) -> Cell:
    size = table.scale(scale)
    tree = layered(
        table.settings, table.columns[column], table.rows[row], *_special(table.cells, row, column),
        size.settings, *_special(size.cells, row, column),
    )  # fmt: skip
    metric, start = tree.pop("metric", "accuracy"), tree.pop("start", None)
    starts: tuple[Layer, ...] = ()
    if start:
        begun = layered({"model": tree["model"]}, table.starts[start], size.starts.get(start, {}))
        sources = begun["data"] if isinstance(begun["data"], list) else [begun["data"]]
        starts = tuple(_with_data({**begun, "data": source}, size.data) for source in sources)
    return Cell(row, column, _with_data(tree, size.data), metric, table.figure(row, column), starts)


def _special(special: Iterable[Special], row: str, column: str) -> list[Layer]:
    return [each.settings for each in special if matches(row, each.rows) and matches(column, each.columns)]


def layered(*layers: Layer) -> Layer:
    """Later layers win, key by key; a section that names another thing loses the options of the first."""
    result: Layer = {}
    for layer in layers:
        for section, value in layer.items():
            if isinstance(value, str) and section in _NAMED:
                value = {"name": value}
            if isinstance(value, dict):
                before = result.get(section)
                before = before if isinstance(before, dict) else {}
                if "name" in before and value.get("name", before["name"]) != before["name"]:
                    before = {key: before[key] for key in _KEPT.get(section, ()) if key in before}
                value = {**before, **value}
            result[section] = value
    return result


def _with_data(tree: Layer, stands_in: Mapping[str, Layer]) -> Layer:
    for name, section in data_sections(tree).items():
        tree = layered(tree, {name: stands_in.get(source_of(section), {})})
    return tree


def data_sections(tree: Layer) -> dict[str, Layer]:
    """The sections that name a data set: that of the devices, and the server's where it is another one."""
    sections = {name: layered({name: tree[name]})[name] for name in ("data", "public") if name in tree}
    return {name: section for name, section in sections.items() if isinstance(section, dict) and "name" in section}


def source_of(section: Mapping[str, Any]) -> str:
    """The name under which a user says where the files of a data set are.

    For a set that the package has a name for, that name; else `path` in the table holds one, and `name` the format.
    """
    return str(section.get("path") or section["name"])
