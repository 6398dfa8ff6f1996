"""A published table or figure as data: its experiments, its numbers and the conclusions of its authors.

Each file in `tables/` is one table. The experiment of a cell is merged from layers; later layers override earlier ones:
`experiment` of the table, the column, the row, the matching `cells`, then `experiment` and matching `cells` of the
scale. Besides the sections of an experiment, a layer may contain `metric`, the reported value (see `metrics.measure`,
default: `accuracy`), `evaluated`, the model that stands for MODEL in it (default: federated), and two names of
pretrainings in `starts`: the weights of `from_start` initialise the model, those of `devices_from_start` the models of
`model.ladder`. A seed in a layer is added to the seed of the run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from undergrowth.core import InputError, suggest
from undergrowth.runs.fields import Count
from undergrowth.runs.sections import Section

SCALES = ("full", "small", "smoke")
FIGURE = "figure-"  # begins the name of a figure
_FIGURE_PATTERN = re.compile(r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?:±(\d+(?:\.\d+)?))?")

Place = tuple[str, str]  # row and column
Raw = dict[str, Any]  # an experiment, or a part of one, before validation


class Figure(NamedTuple):
    """A number and, if known, its standard deviation over seeds."""

    mean: float
    spread: float | None = None

    def __str__(self) -> str:
        form = ".2f" if self.mean == 0 or 0.1 <= abs(self.mean) < 1e5 else ".4g"
        return f"{self.mean:{form}}" if self.spread is None else f"{self.mean:{form}} ± {self.spread:{form}}"


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
    """A conclusion of the authors as pairs (see `pair_sides`), compared in every matching column."""

    claim: str
    pairs: tuple[str, ...]
    columns: str = "*"


class Start(Section):
    """A pretraining. It begins with the table's experiment, the column and the scale; `experiment` overrides them."""

    experiment: Raw  # `data` may be a list of alternatives: the first one whose files are available is used
    after: str | None = None  # the pretraining whose weights it starts from
    keep_head: bool = False  # the run that follows has the same classes, so the classifier is kept


class Plot(Section):
    """How the numbers are drawn, on an HTML page and in the images of a figure."""

    kind: Literal["rounds", "columns", "bars"] = "rounds"  # learning curves, lines over the columns, or bars
    x: str = ""  # title of the axis of columns


class Scale(Section):
    """The part of the published experiments that is run, and what is changed to make it smaller."""

    seeds: Count
    only: tuple[str, ...] = ("*",)  # ROW/COLUMN patterns of the cells to run
    experiment: Raw = Field(default_factory=dict)
    cells: tuple[CellSettings, ...] = ()
    data: dict[str, Raw] = Field(default_factory=dict)  # name of a data set → changes to its section
    starts: dict[str, Raw] = Field(default_factory=dict)  # name of a pretraining → changes to its experiment
    notes: tuple[str, ...] = ()  # what holds for this scale only


class Table(Section):
    """A published table or figure: how to run its cells, its numbers and its authors' conclusions."""

    # Numbers in the source, such as 4.3 or figure-4.7; a name for a question that the source asks without numbers.
    tables: Annotated[tuple[str, ...], Field(min_length=1)]
    title: str
    source: str
    experiment: Raw
    columns: dict[Name, Raw]
    rows: dict[Name, Raw]
    cells: tuple[CellSettings, ...] = ()
    data: dict[str, Raw] = Field(default_factory=dict)  # name of a data set → settings wherever devices have it
    starts: dict[str, Start] = Field(default_factory=dict)
    # In the order of the columns. A table with numbers has no cell where one is missing; others have all cells.
    published: dict[Name, tuple[Published, ...]] = Field(default_factory=dict)
    # Name of the data set of another pretraining → the numbers that the source gives for it.
    published_from: dict[str, dict[Name, tuple[Published, ...]]] = Field(default_factory=dict)
    orderings: tuple[Ordering, ...] = ()
    unit: str = "%"
    plot: Plot = Plot()
    notes: tuple[str, ...] = ()  # what holds for every scale
    scales: dict[str, Scale]

    @property
    def name(self) -> str:
        return self.tables[0]

    @property
    def label(self) -> str:
        """The name with its kind, such as Table 4.5 and 4.6, or Figure 4.7."""
        kind = "Figure" if self.is_figure else "Table"
        return f"{kind} {' and '.join(number.removeprefix(FIGURE) for number in self.tables)}"

    @property
    def is_figure(self) -> bool:
        return self.name.startswith(FIGURE)

    @property
    def is_question(self) -> bool:
        """Whether it is about a question that the source asks without publishing numbers."""
        return not self.is_figure and not self.published

    @property
    def columns_are_seeds(self) -> bool:
        """Whether every column is one seed, so that a cell is a single run."""
        return all("seed" in column.get("run", {}) for column in self.columns.values())

    @property
    def places(self) -> list[Place]:
        """The row and column of every cell: those with a published number, and all of a row that has none, our own."""
        every = [(row, column) for row in self.rows for column in self.columns]
        if self.is_figure or self.is_question:
            return every
        return [place for place in every if place in self.figures or not any(self.published[place[0]])]

    def scale(self, name: str) -> Scale:
        if name not in self.scales:
            raise InputError(f"scale '{name}' is not known; {suggest(name, self.scales)}")
        return self.scales[name]

    @property
    def figures(self) -> dict[Place, Figure]:
        """The published numbers by row and column."""
        return self._by_place(self.published)

    def figures_from(self, source: str) -> dict[Place, Figure]:
        """The published numbers of models that were pretrained on the data set `source`."""
        return self._by_place(self.published_from.get(source, {}))

    def _by_place(self, published: Mapping[str, tuple[Figure | None, ...]]) -> dict[Place, Figure]:
        return {
            (row, column): figure
            for row, figures in published.items()
            for column, figure in zip(self.columns, figures, strict=True)
            if figure
        }

    @model_validator(mode="after")
    def _check_starts(self) -> Table:
        layers = (*self.columns.values(), *self.rows.values(), self.experiment)
        named = [layer.get(key) for layer in layers for key in ("from_start", "devices_from_start")]
        for name in (*named, *(start.after for start in self.starts.values())):
            if name is not None and name not in self.starts:
                raise ValueError(f"table {self.name}: there is no start '{name}'")
        return self

    @model_validator(mode="after")
    def _check_consistency(self) -> Table:
        if set(self.scales) != set(SCALES):
            raise ValueError(f"table {self.name}: scales must be {', '.join(SCALES)}")
        if not self.is_figure and not self.is_question and list(self.published) != list(self.rows):
            raise ValueError(f"table {self.name}: published must have the rows {', '.join(self.rows)}")
        for published in (self.published, *self.published_from.values()):
            for row, figures in published.items():
                if row not in self.rows or len(figures) != len(self.columns):
                    count = f"{len(figures)} figures for {len(self.columns)} columns"
                    raise ValueError(f"table {self.name}: published has {row} with {count}")
        for ordering in self.orderings:
            for pair in ordering.pairs:
                for row, column, _ in pair_sides(pair):
                    if row not in self.rows or (column and column not in self.columns):
                        raise ValueError(f"table {self.name}: '{pair}' names an unknown row or column")
        return self


class Side(NamedTuple):
    """One side of a pair: a row, a column or None for every column, and the factor that its value is multiplied by."""

    row: str
    column: str | None
    factor: float


def pair_sides(pair: str) -> tuple[Side, Side]:
    """The higher and the lower side of a pair such as "FedFT > 3 × FedAvg @ CIFAR-10"."""
    higher, lower = (_parse_side(text) for text in pair.split(" > "))
    return higher, lower


def _parse_side(text: str) -> Side:
    factor, times, rest = text.partition(" × ")
    row, _, column = (rest if times else text).partition(" @ ")
    return Side(row, column or None, float(factor) if times else 1.0)


def matches(name: str, pattern: str) -> bool:
    """Whether `name` matches `pattern`, ignoring case. `*` matches anything, `|` separates alternatives."""
    return any(fnmatchcase(name.lower(), each.strip().lower()) for each in pattern.split("|"))


def matches_cell(row: str, column: str, pattern: str) -> bool:
    """Whether a cell matches a pattern such as FedAvg*/CIFAR-10*. An omitted side matches anything."""
    row_pattern, _, column_pattern = pattern.partition("/")
    return matches(row, row_pattern or "*") and matches(column, column_pattern or "*")
