"""A published table as data: its settings, its figures and what its authors conclude from them.

Every file in `tables/` is one table. An experiment is put together from layers, each of which may say less than the one
before it: `settings` of the whole table, of the column, of the row, of `cells` that a pattern names, then those of
the scale. Beside the sections of an experiment a layer may hold `metric`, what is reported (a value of the rounds, of
which the best is taken: by default `accuracy`; `final`, the accuracy at the end; `class 9`, that on one class), and
`start`, the name of a pretraining in `starts` whose weights the model begins with.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from undergrowth.core import InputError, nearest
from undergrowth.runs.config import Section
from undergrowth.runs.fields import Count

SCALES = ("full", "small", "smoke")
PRINTED = re.compile(r"(\d+(?:\.\d+)?)(?:±(\d+(?:\.\d+)?))?")

Layer = dict[str, Any]


class Figure(NamedTuple):
    """A percentage, and its standard deviation over seeds where there is one."""

    mean: float
    spread: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.spread is None else f"{self.mean:.2f} ± {self.spread:.2f}"


def _figure(text: Any) -> Figure | None:
    if text is None:
        return None
    found = PRINTED.fullmatch(str(text).replace(" ", ""))
    if not found:
        raise ValueError(f"must be a number such as 62.95 or 62.95±2.84, not {text!r}")
    return Figure(float(found[1]), float(found[2]) if found[2] else None)


def _speakable(name: str) -> str:
    if re.search(r"[/|@>]", name):
        raise ValueError("must do without / | @ and >, which stand between names")
    return name


Name = Annotated[str, AfterValidator(_speakable)]
Published = Annotated[Figure | None, BeforeValidator(_figure)]


class Special(Section):
    """Settings of the cells whose row and column match."""

    rows: str = "*"
    columns: str = "*"
    settings: Layer


class Ordering(Section):
    """What the authors conclude: pairs such as "FedFSC(FedAvg) > FedAvg", column by column, or ROW @ COLUMN."""

    says: str
    pairs: tuple[str, ...]
    columns: str = "*"


class Scale(Section):
    """How much of the published setting is run."""

    seeds: Count
    only: tuple[str, ...] = ("*",)  # ROW/COLUMN patterns of the cells that are run
    settings: Layer = Field(default_factory=dict)
    cells: tuple[Special, ...] = ()
    data: dict[str, Layer] = Field(default_factory=dict)  # what stands in for a data set, or is changed about it
    starts: dict[str, Layer] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Table(Section):
    tables: Annotated[tuple[str, ...], Field(min_length=1)]  # the numbers that it has in its source
    title: str
    source: str
    settings: Layer
    columns: dict[Name, Layer]
    rows: dict[Name, Layer]
    cells: tuple[Special, ...] = ()
    starts: dict[str, Layer] = Field(default_factory=dict)
    published: dict[Name, tuple[Published, ...]]  # in the order of the columns
    orderings: tuple[Ordering, ...]
    notes: tuple[str, ...] = ()
    scales: dict[str, Scale]

    @property
    def name(self) -> str:
        return self.tables[0]

    def scale(self, name: str) -> Scale:
        if name not in self.scales:
            raise InputError(f"scale '{name}' is not known; {nearest(name, self.scales)}")
        return self.scales[name]

    def figure(self, row: str, column: str) -> Figure | None:
        """What was published."""
        return self.published[row][list(self.columns).index(column)]

    @model_validator(mode="after")
    def _fits_together(self) -> Table:
        if set(self.scales) != set(SCALES):
            raise ValueError(f"table {self.name}: scales must be {', '.join(SCALES)}")
        if list(self.published) != list(self.rows):
            raise ValueError(f"table {self.name}: published must have the rows {', '.join(self.rows)}")
        for row, figures in self.published.items():
            if len(figures) != len(self.columns):
                raise ValueError(f"table {self.name}: {row} has {len(figures)} figures for {len(self.columns)} columns")
        for ordering in self.orderings:
            for pair in ordering.pairs:
                for row, column in sides(pair):
                    if row not in self.rows or (column and column not in self.columns):
                        raise ValueError(f"table {self.name}: '{pair}' names a row or column that is not there")
        return self


def sides(pair: str) -> tuple[tuple[str, str | None], tuple[str, str | None]]:
    """Row and column of the side that should be higher, and of the other; no column: whichever is looked at."""
    higher, lower = (side.partition(" @ ") for side in pair.split(" > "))
    return (higher[0], higher[2] or None), (lower[0], lower[2] or None)


def matches(name: str, pattern: str) -> bool:
    """`*` stands for anything, `|` between patterns for either, and capitals are as good as small letters."""
    return any(fnmatchcase(name.lower(), each.strip().lower()) for each in pattern.split("|"))


def chosen(row: str, column: str, pattern: str) -> bool:
    """Whether a pattern such as FedAvg*/CIFAR-10* names a cell; a side that is left out stands for anything."""
    of_row, _, of_column = pattern.partition("/")
    return matches(row, of_row or "*") and matches(column, of_column or "*")


@cache
def tables() -> dict[str, Table]:
    """Every table, by its first number, in the order of the numbers."""
    folder = resources.files(__package__) / "tables"
    found = [
        Table.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    ]
    found.sort(key=lambda table: [int(number) for number in table.name.split(".")])
    return {table.name: table for table in found}


def find(name: str) -> Table:
    numbers = {number: table for table in tables().values() for number in table.tables}
    if name not in numbers:
        raise InputError(f"table '{name}' is not known; {nearest(name, numbers)}")
    return numbers[name]
