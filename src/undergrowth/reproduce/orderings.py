"""Which conclusions of the authors hold in our runs, and which comparisons need more seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from undergrowth.reproduce.table import Figure, Ordering, Place, Table, matches, pair_sides

HELD, OPEN, EQUAL, NO = "held", "open", "equal", "no"
MIN_SEEDS = 2  # with fewer, nothing is decided
MAX_SEEDS = 4  # of a comparison that two seeds do not settle
STANDARD_ERRORS = 2  # a smaller gap is not settled

Values = Mapping[int, float]  # seed → value


@dataclass(frozen=True)
class OrderingResult:
    """Whether a published ordering holds, over the columns in which both of its sides were run."""

    pair: str
    claim: str
    verdict: str  # held: right for every seed; no: wrong for every seed; equal: neither for any; open: all else
    seeds: tuple[bool, ...]  # whether it held for each pair of runs with the same seed and so the same partition
    held: tuple[str, ...]  # columns in which our means have this order
    broken: tuple[str, ...]  # columns in which they do not
    gap: float | None  # mean of higher − lower in our runs
    published_gap: float | None  # the same for the published numbers of these columns
    published_held: int
    published_columns: int  # columns with published numbers of both sides
    other_start: bool = False  # the published numbers are of models with another pretraining
    unsettled: tuple[Place, ...] = ()  # cells that need more seeds
    equal: int = 0  # pairs of runs whose values are exactly equal, which speak neither for nor against the order

    def __str__(self) -> str:
        columns = len(self.held) + len(self.broken)
        if not columns:
            return f"{self.pair}: open, one side was not run"
        where = f" in {columns} columns" if columns > 1 else ""
        if self.verdict == EQUAL:
            return f"{self.pair}: equal, nothing to compare, {self.equal} seeds{where}; {self._published(columns)}"
        seeds = f"{sum(self.seeds)} of {len(self.seeds)} seeds"
        equal = f", {self.equal} equal" if self.equal else ""
        broken = f" (means: not in {', '.join(self.broken)})" if self.broken and self.held else ""
        ours = f"{self.verdict}, {seeds}{where}{equal}{broken}, {self.gap:+.2f} on average"
        return f"{self.pair}: {ours}; {self._published(columns)}"

    def _published(self, columns: int) -> str:
        if self.published_gap is None:
            return "not published"
        start = " with another pretraining" if self.other_start else ""
        columns_held = f", {self.published_held} of {self.published_columns} columns" if columns > 1 else ""
        return f"published{start}: {self.published_gap:+.2f}{columns_held}"


def check_orderings(
    table: Table, values: Mapping[Place, Values], published: Mapping[Place, Figure] | None = None
) -> list[OrderingResult]:
    """Compare every ordering of `table` with our values.

    published: the numbers of models with the pretraining of our runs; without them, all numbers of the table.
    """
    same_start = table.figures if published is None else published
    return [
        _check_pair(table, ordering, pair, values, same_start)
        for ordering in table.orderings
        for pair in ordering.pairs
    ]


def _check_pair(
    table: Table, ordering: Ordering, pair: str, values: Mapping[Place, Values], same_start: Mapping[Place, Figure]
) -> OrderingResult:
    higher, lower = pair_sides(pair)
    columns = [column for column in table.columns if matches(column, ordering.columns)]
    every = dict.fromkeys(((higher.row, higher.column or each), (lower.row, lower.column or each)) for each in columns)
    seeds = {(high, low): sorted(values.get(high, {}).keys() & values.get(low, {}).keys()) for high, low in every}
    compared = [(high, low) for high, low in every if seeds[high, low]]

    def gap(high: float, low: float) -> float:
        return higher.factor * high - lower.factor * low

    gaps: list[float] = []  # by column, over the seeds that both sides have
    every_difference: list[float] = []
    unsettled: list[Place] = []
    for high, low in compared:
        differences = [gap(values[high][seed], values[low][seed]) for seed in seeds[high, low]]
        gaps.append(statistics.fmean(differences))
        every_difference += differences
        if not table.columns_are_seeds and not is_settled(differences):
            unsettled += [high, low]
    pairs = [(high, low) for high, low in compared if {high, low} <= table.figures.keys()]
    known = all({high, low} <= same_start.keys() for high, low in pairs)
    numbers = same_start if known else table.figures
    published = [gap(numbers[high].mean, numbers[low].mean) for high, low in pairs]
    names = [high[1] for high, _ in compared]
    return OrderingResult(
        pair,
        ordering.claim,
        _verdict(every_difference),
        seeds=tuple(difference > 0 for difference in every_difference),
        held=tuple(name for name, mean in zip(names, gaps, strict=True) if mean > 0),
        broken=tuple(name for name, mean in zip(names, gaps, strict=True) if mean <= 0),
        gap=statistics.fmean(gaps) if gaps else None,
        published_gap=statistics.fmean(published) if published else None,
        published_held=sum(mean > 0 for mean in published),
        published_columns=len(published),
        other_start=not known,
        unsettled=tuple(unsettled),
        equal=every_difference.count(0),
    )


def _verdict(differences: list[float]) -> str:
    if len(differences) < MIN_SEEDS:
        return OPEN
    if not any(differences):
        return EQUAL
    if all(difference > 0 for difference in differences):
        return HELD
    return NO if all(difference < 0 for difference in differences) else OPEN


def is_settled(differences: list[float]) -> bool:
    """Whether the mean of the differences per seed is at least two standard errors from 0, or enough seeds were run."""
    count = len(differences)
    if count >= MAX_SEEDS:
        return True
    if count < MIN_SEEDS:
        return False
    error = statistics.stdev(differences) / math.sqrt(count)
    return abs(statistics.fmean(differences)) >= STANDARD_ERRORS * error
