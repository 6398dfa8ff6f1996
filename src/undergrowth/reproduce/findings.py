"""What came out: our figures beside the published ones, and which of the published orderings hold."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from undergrowth.core import RunError
from undergrowth.data import load
from undergrowth.report.tables import operations, size
from undergrowth.reproduce.cells import Cell
from undergrowth.reproduce.table import Figure, Table, matches, sides
from undergrowth.runs import Store
from undergrowth.runs.result import result_of
from undergrowth.runs.stored_experiment import stored_experiment

Place = tuple[str, str]  # row and column
Values = tuple[float, ...]


class Cost(NamedTuple):
    """What a run asked of all its devices together; what a model was pretrained with is not in it."""

    flops: float
    traffic: float  # bytes, up and down

    def __str__(self) -> str:
        return f"{operations(self.flops)}, {size(self.traffic)}"


@dataclass(frozen=True)
class Finding:
    """A cell with what our runs gave, seed by seed, in per cent, and what they cost."""

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
        return Cost(*(statistics.fmean(of_seeds) for of_seeds in zip(*self.costs))) if self.costs else None


@dataclass(frozen=True)
class Verdict:
    """How an ordering came out, in the cells where both sides are there."""

    pair: str
    says: str
    held: tuple[str, ...]
    broken: tuple[str, ...]
    gap: float | None  # mean of higher − lower, ours
    published_gap: float | None  # the same of the published figures of these cells
    published_held: int
    seeds: tuple[bool, ...] = ()  # whether it held for runs of the same seed, which deal the data out alike

    def __str__(self) -> str:
        asked = len(self.held) + len(self.broken)
        if not asked:
            return f"{self.pair}: cannot be said, a side of it was not run"
        where = f" (not in {', '.join(self.broken)})" if self.broken else ""
        pairs = f" and {sum(self.seeds)} of {len(self.seeds)} pairs of one seed" if self.seeds else ""
        return (
            f"{self.pair}: held in {len(self.held)} of {asked} columns{where}{pairs}, {self.gap:+.2f} on average; "
            f"published: {self.published_held} of {asked}, {self.published_gap:+.2f}"
        )


@dataclass(frozen=True)
class Report:
    """All that is to be told of a table."""

    table: Table
    scale: str
    findings: tuple[Finding, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)  # cell → why
    failed: Mapping[str, str] = field(default_factory=dict)  # cell → why

    @property
    def verdicts(self) -> list[Verdict]:
        found = {(each.cell.row, each.cell.column): each for each in self.findings}
        ours = {place: each.ours for place, each in found.items() if each.ours}
        return verdicts(self.table, ours, {place: found[place].values for place in ours})


def cost(store: Store, run: str) -> Cost:
    summary = store.run(run)["summary"]
    return Cost(summary["flops"], summary["bytes_up"] + summary["bytes_down"])


def measured(store: Store, run: str, metric: str) -> float:
    """What a table asks of a run, in per cent: the best value over its rounds, or one of the model at its end."""
    rounds = store.rounds(run)
    if metric == "final":
        return 100 * float(rounds[-1]["accuracy"])
    if metric.startswith("class "):
        return 100 * _accuracy_on(store, run, int(metric.removeprefix("class ")))
    values = [row[metric] for row in rounds if row.get(metric) is not None]
    if not values:
        raise RunError(f"run '{run}' has no '{metric}' in its rounds, which the table asks for")
    return 100 * float(max(values))


def _accuracy_on(store: Store, run: str, label: int) -> float:
    """Accuracy of the final model on the test samples of one class."""
    section = stored_experiment(store.run(run)).data
    test = load(section.name, section.path, **section.options).central_test()
    x = test.x[test.y == label]
    with torch.no_grad():
        model = result_of(store, run).model
        guesses = torch.cat([model(part).argmax(1) for part in x.split(500)])
    return float((guesses == label).float().mean())


def verdicts(table: Table, ours: Mapping[Place, Figure], values: Mapping[Place, Values] | None = None) -> list[Verdict]:
    """`values`: those that the figures are made of, seed by seed."""
    found = []
    for ordering in table.orderings:
        columns = [column for column in table.columns if matches(column, ordering.columns)]
        for pair in ordering.pairs:
            higher, lower = sides(pair)
            places = dict.fromkeys(
                ((higher[0], higher[1] or column), (lower[0], lower[1] or column)) for column in columns
            )
            found.append(_verdict(table, pair, ordering.says, list(places), ours, values or {}))
    return found


def _verdict(
    table: Table,
    pair: str,
    says: str,
    places: Sequence[tuple[Place, Place]],
    ours: Mapping[Place, Figure],
    values: Mapping[Place, Values],
) -> Verdict:
    held: list[str] = []
    broken: list[str] = []
    gaps: list[float] = []
    published: list[float] = []
    seeds: list[bool] = []
    for high, low in places:
        printed = table.figure(*high), table.figure(*low)
        if high not in ours or low not in ours or printed[0] is None or printed[1] is None:
            continue
        gaps.append(ours[high].mean - ours[low].mean)
        published.append(printed[0].mean - printed[1].mean)
        (held if gaps[-1] > 0 else broken).append(high[1])
        first, second = values.get(high, ()), values.get(low, ())
        if len(first) == len(second) > 1:  # else some seed is missing on one side
            seeds += [one > other for one, other in zip(first, second)]
    return Verdict(
        pair,
        says,
        tuple(held),
        tuple(broken),
        statistics.fmean(gaps) if gaps else None,
        statistics.fmean(published) if published else None,
        sum(gap > 0 for gap in published),
        tuple(seeds),
    )
