"""A published table as data: its experiments, its figures and the conclusions of its authors.

Each file in `tables/` is one table. The experiment of a cell is merged from layers; later layers override earlier ones:
`experiment` of the table, the column, the row, the matching `cells`, then `experiment` and matching `cells` of the
scale. Besides the sections of an experiment, a layer may contain `metric`, the reported value (see `results.measure`,
default: `accuracy`), and `start`, the name of a pretraining in `starts` whose final weights initialise the model.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from undergrowth.core import InputError, suggest
from undergrowth.runs.fields import Count
from undergrowth.runs.sections import Section

SCALES = ("full", "small", "smoke")
_FIGURE_PATTERN = re.compile(r"(\d+(?:\.\d+)?)(?:±(\d+(?:\.\d+)?))?")

Place = tuple[str, str]  # row and column
Raw = dict[str, Any]  # an experiment, or a part of one, before validation


class Figure(NamedTuple):
    """A percentage and, if known, its standard deviation over seeds."""

    mean: float
    spread: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.spread is None else f"{self.mean:.2f} ± {self.spread:.2f}"


def _parse_figure(text: Any) -> Figure | None:
    if text is None:
        return None
    match = _FIGURE_PATTERN.fullmatch(str(text).replace(" ", ""))
    if not match:
        raise ValueError(f"must be a number such as 62.95 or 62.95±2.84, not {text!r}")
    return Figure(float(match[1]), float(match[2]) if match[2] else None)


def _check_name(name: str) -> str:
    if re.search(r"[/|@>]", name):
        raise ValueError("must not contain / | @ or >, which separate names")
    return name


Name = Annotated[str, AfterValidator(_check_name)]
Published = Annotated[Figure | None, BeforeValidator(_parse_figure)]


class CellSettings(Section):
    """A layer for the cells whose row and column match the patterns."""

    rows: str = "*"
    columns: str = "*"
    experiment: Raw


class Ordering(Section):
    """A conclusion of the authors as pairs such as "FedFSC > FedAvg", for every matching column, or ROW @ COLUMN."""

    claim: str
    pairs: tuple[str, ...]
    columns: str = "*"


class Scale(Section):
    """The part of the published experiments that is run, and what is changed to make it smaller."""

    seeds: Count
    only: tuple[str, ...] = ("*",)  # ROW/COLUMN patterns of the cells to run
    experiment: Raw = Field(default_factory=dict)
    cells: tuple[CellSettings, ...] = ()
    data: dict[str, Raw] = Field(default_factory=dict)  # name of a data set → changes to its section
    starts: dict[str, Raw] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Table(Section):
    """A published table: how to run its cells, its figures and its authors' conclusions."""

    tables: Annotated[tuple[str, ...], Field(min_length=1)]  # numbers of the table in its source
    title: str
    source: str
    experiment: Raw
    columns: dict[Name, Raw]
    rows: dict[Name, Raw]
    cells: tuple[CellSettings, ...] = ()
    starts: dict[str, Raw] = Field(default_factory=dict)
    published: dict[Name, tuple[Published, ...]]  # in the order of the columns
    orderings: tuple[Ordering, ...]
    notes: tuple[str, ...] = ()
    scales: dict[str, Scale]

    @property
    def name(self) -> str:
        return self.tables[0]

    def scale(self, name: str) -> Scale:
        if name not in self.scales:
            raise InputError(f"scale '{name}' is not known; {suggest(name, self.scales)}")
        return self.scales[name]

    @property
    def figures(self) -> dict[Place, Figure]:
        """The published figures by row and column."""
        return {
            (row, column): figure
            for row, figures in self.published.items()
            for column, figure in zip(self.columns, figures, strict=True)
            if figure
        }

    @model_validator(mode="after")
    def _check_consistency(self) -> Table:
        if set(self.scales) != set(SCALES):
            raise ValueError(f"table {self.name}: scales must be {', '.join(SCALES)}")
        if list(self.published) != list(self.rows):
            raise ValueError(f"table {self.name}: published must have the rows {', '.join(self.rows)}")
        for row, figures in self.published.items():
            if len(figures) != len(self.columns):
                raise ValueError(f"table {self.name}: {row} has {len(figures)} figures for {len(self.columns)} columns")
        for ordering in self.orderings:
            for pair in ordering.pairs:
                for row, column in pair_sides(pair):
                    if row not in self.rows or (column and column not in self.columns):
                        raise ValueError(f"table {self.name}: '{pair}' names an unknown row or column")
        return self


def pair_sides(pair: str) -> tuple[tuple[str, str | None], tuple[str, str | None]]:
    """Row and column of the higher and of the lower side. A column is None if the pair holds for every column."""
    higher, lower = (side.partition(" @ ") for side in pair.split(" > "))
    return (higher[0], higher[2] or None), (lower[0], lower[2] or None)


def matches(name: str, pattern: str) -> bool:
    """Whether `name` matches `pattern`, ignoring case. `*` matches anything, `|` separates alternatives."""
    return any(fnmatchcase(name.lower(), each.strip().lower()) for each in pattern.split("|"))


def matches_cell(row: str, column: str, pattern: str) -> bool:
    """Whether a cell matches a pattern such as FedAvg*/CIFAR-10*. An omitted side matches anything."""
    row_pattern, _, column_pattern = pattern.partition("/")
    return matches(row, row_pattern or "*") and matches(column, column_pattern or "*")


@cache
def load_tables() -> dict[str, Table]:
    """All tables by their first number, in numerical order."""
    folder = resources.files(__package__) / "tables"
    loaded = [
        Table.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    ]
    loaded.sort(key=lambda table: [int(number) for number in table.name.split(".")])
    return {table.name: table for table in loaded}


def find_table(name: str) -> Table:
    """The table with the number `name`."""
    numbers = {number: table for table in load_tables().values() for number in table.tables}
    if name not in numbers:
        raise InputError(f"table '{name}' is not known; {suggest(name, numbers)}")
    return numbers[name]
