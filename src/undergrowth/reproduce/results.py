"""The results of a table: our figures beside the published ones, and which published orderings hold."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from undergrowth.core import RunError
from undergrowth.data import load
from undergrowth.report.tables import operations, size
from undergrowth.reproduce.table import Figure, Ordering, Place, Table, matches, pair_sides
from undergrowth.reproduce.table_cells import Cell
from undergrowth.runs import Store
from undergrowth.runs.result import result_of
from undergrowth.runs.stored_experiment import stored_experiment

Values = tuple[float, ...]  # one per seed


class Cost(NamedTuple):
    """The cost of a run for all devices together, without pretraining."""

    flops: float
    traffic: float  # bytes, up and down

    def __str__(self) -> str:
        return f"{operations(self.flops)}, {size(self.traffic)}"


@dataclass(frozen=True)
class CellResult:
    """A cell with the values of our runs in per cent, and their costs, one per seed."""

    cell: Cell
    values: tuple[float, ...] = ()
    runs: tuple[str, ...] = ()
    costs: tuple[Cost, ...] = ()

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
class OrderingResult:
    """Whether a published ordering holds, over the columns in which both of its sides were run."""

    pair: str
    claim: str
    held: tuple[str, ...]
    broken: tuple[str, ...]
    gap: float | None  # mean of higher − lower in our figures
    published_gap: float | None  # the same for the published figures of these columns
    published_held: int
    seeds: tuple[bool, ...] = ()  # whether it held for each pair of runs with the same seed and so the same partition

    def __str__(self) -> str:
        columns = len(self.held) + len(self.broken)
        if not columns:
            return f"{self.pair}: unknown, one side was not run"
        exceptions = f" (not in {', '.join(self.broken)})" if self.broken else ""
        pairs = f" and {sum(self.seeds)} of {len(self.seeds)} pairs with the same seed" if self.seeds else ""
        return (
            f"{self.pair}: held in {len(self.held)} of {columns} columns{exceptions}{pairs}, {self.gap:+.2f} on "
            f"average; published: {self.published_held} of {columns}, {self.published_gap:+.2f}"
        )


@dataclass(frozen=True)
class TableResult:
    """The results of a table at a scale."""

    table: Table
    scale: str
    cells: tuple[CellResult, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)  # name of a cell → reason
    failed: Mapping[str, str] = field(default_factory=dict)  # name of a cell → reason

    @property
    def orderings(self) -> list[OrderingResult]:
        cells = {(each.cell.row, each.cell.column): each for each in self.cells}
        ours = {place: each.ours for place, each in cells.items() if each.ours}
        return check_orderings(self.table, ours, {place: cells[place].values for place in ours})


def run_cost(store: Store, run: str) -> Cost:
    summary = store.run(run)["summary"]
    return Cost(summary["flops"], summary["bytes_up"] + summary["bytes_down"])


def measure(store: Store, run: str, metric: str) -> float:
    """The value of `metric` for a run, in per cent.

    `metric` is `final` (accuracy after the last round), `class N` (accuracy of the final model on the test samples of
    class N), or a column of the rounds such as `accuracy`, of which the best value is taken.
    """
    rounds = store.rounds(run)
    if metric == "final":
        return 100 * float(rounds[-1]["accuracy"])
    if metric.startswith("class "):
        return 100 * _class_accuracy(store, run, int(metric.removeprefix("class ")))
    values = [row[metric] for row in rounds if row.get(metric) is not None]
    if not values:
        raise RunError(f"run '{run}' has no '{metric}' in its rounds, which the table needs")
    return 100 * float(max(values))


def _class_accuracy(store: Store, run: str, label: int) -> float:
    """Accuracy of the final model on the test samples of one class."""
    section = stored_experiment(store.run(run)).data
    test = load(section.name, section.path, **section.options).central_test()
    x = test.x[test.y == label]
    with torch.no_grad():
        model = result_of(store, run).model
        predicted = torch.cat([model(part).argmax(1) for part in x.split(500)])
    return float((predicted == label).float().mean())


def check_orderings(
    table: Table, ours: Mapping[Place, Figure], values: Mapping[Place, Values] | None = None
) -> list[OrderingResult]:
    """Compare every ordering of `table` with our figures; `values` are the values per seed behind the figures."""
    return [
        _check_pair(table, ordering, pair, ours, values or {})
        for ordering in table.orderings
        for pair in ordering.pairs
    ]


def _check_pair(
    table: Table, ordering: Ordering, pair: str, ours: Mapping[Place, Figure], values: Mapping[Place, Values]
) -> OrderingResult:
    (high_row, high_column), (low_row, low_column) = pair_sides(pair)
    columns = [column for column in table.columns if matches(column, ordering.columns)]
    pairs = dict.fromkeys(((high_row, high_column or each), (low_row, low_column or each)) for each in columns)
    published = table.figures
    compared = [(high, low) for high, low in pairs if {high, low} <= ours.keys() & published.keys()]
    gaps = [ours[high].mean - ours[low].mean for high, low in compared]
    published_gaps = [published[high].mean - published[low].mean for high, low in compared]
    seeds: list[bool] = []
    for high, low in compared:
        high_values, low_values = values.get(high, ()), values.get(low, ())
        if len(high_values) == len(low_values) > 1:  # otherwise a seed is missing on one side
            seeds += [first > second for first, second in zip(high_values, low_values, strict=True)]
    compared_columns = [high[1] for high, _ in compared]
    return OrderingResult(
        pair,
        ordering.claim,
        tuple(column for column, gap in zip(compared_columns, gaps, strict=True) if gap > 0),
        tuple(column for column, gap in zip(compared_columns, gaps, strict=True) if gap <= 0),
        statistics.fmean(gaps) if gaps else None,
        statistics.fmean(published_gaps) if published_gaps else None,
        sum(gap > 0 for gap in published_gaps),
        tuple(seeds),
    )
