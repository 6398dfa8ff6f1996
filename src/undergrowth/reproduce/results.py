"""The results of a table: our numbers beside the published ones, and what the runs cost."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from undergrowth.report.tables import operations, size
from undergrowth.reproduce.metrics import Curve
from undergrowth.reproduce.orderings import OrderingResult, check_orderings
from undergrowth.reproduce.table import Figure, Place, Table
from undergrowth.reproduce.table_cells import Cell, Pretraining
from undergrowth.runs import Store


class Cost(NamedTuple):
    """The cost of a run for all devices together, without pretraining."""

    flops: float
    traffic: float  # bytes, up and down

    def __str__(self) -> str:
        return f"{operations(self.flops)}, {size(self.traffic)}"


@dataclass(frozen=True)
class CellResult:
    """A cell with the values of our runs and their costs, one per seed."""

    cell: Cell
    values: tuple[float, ...] = ()
    runs: tuple[str, ...] = ()
    costs: tuple[Cost, ...] = ()
    seeds: tuple[int, ...] = ()
    start: Pretraining | None = None  # the pretraining that the runs started from
    published: Figure | None = None  # with the same pretraining
    curve: Curve = ()

    @property
    def ours(self) -> Figure | None:
        if not self.values:
            return None
        spread = statistics.stdev(self.values) if len(self.values) > 1 else None
        return Figure(statistics.fmean(self.values), spread)

    @property
    def cost(self) -> Cost | None:
        if not self.costs:
            return None
        return Cost(*(statistics.fmean(per_seed) for per_seed in zip(*self.costs, strict=True)))


@dataclass(frozen=True)
class TableResult:
    """The results of a table at a scale."""

    table: Table
    scale: str
    cells: tuple[CellResult, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)  # name of a cell → reason
    failed: Mapping[str, str] = field(default_factory=dict)  # name of a cell → reason
    unfinished: Mapping[str, str] = field(default_factory=dict)  # name of a cell → seeds left by the time limit
    missing: Mapping[str, str] = field(default_factory=dict)  # what cells that are left out lack → how to get it

    @cached_property
    def orderings(self) -> list[OrderingResult]:
        values = {each.cell.place: dict(zip(each.seeds, each.values, strict=True)) for each in self.cells}
        published = {each.cell.place: each.published for each in self.cells if each.published}
        return check_orderings(self.table, values, published)

    @property
    def unsettled(self) -> list[Place]:
        """The cells that need more seeds, because a gap between two of them is below two standard errors.

        Cells that are other figures of the same runs belong to them, so that all figures of a run have the same seeds.
        """
        places = {place for ordering in self.orderings for place in ordering.unsettled}
        runs = {run for each in self.cells if each.cell.place in places for run in each.runs}
        return [each.cell.place for each in self.cells if each.cell.place in places or runs & set(each.runs)]


def published_figure(table: Table, cell: Cell, start: Pretraining | None) -> Figure | None:
    """The published number of a cell for models with the same pretraining."""
    if start is None or start is cell.starts[0]:
        return table.figures.get(cell.place)
    return table.figures_from(start.chain[0].source).get(cell.place)


def run_cost(store: Store, run: str) -> Cost:
    """What a finished run cost."""
    summary = store.run(run)["summary"]
    return Cost(summary["flops"], summary["bytes_up"] + summary["bytes_down"])
