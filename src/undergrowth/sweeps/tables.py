"""The tables of a sweep for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.table import Table

from undergrowth.report.groups import Spread, format_spread
from undergrowth.report.tables import NO_VALUE, WideOrNarrow, duration, energy, score, size, stackable_table, table
from undergrowth.sweeps.comparison import ComparisonRow

_COSTS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "simulated_seconds": ("time", duration),
    "bytes": ("sent", size),
    "joules": ("energy", energy),
}
_COST_TITLES = [title for title, _ in _COSTS.values()]
_STACKED = ((0,), (1, 4), (2, 3), (5, 6), (7, 8))  # columns of the scores in a narrow terminal


def score_table(rows: Sequence[ComparisonRow], metric: str) -> WideOrNarrow:
    """The main metric, difference from the first variant with the seeds that agree, and mean rounds and costs."""
    columns = ["variant", "seeds", metric, "difference", "agree", "rounds", *_COST_TITLES]
    cells = []
    for row in rows:
        sign = "+" if row.difference and row.difference.mean >= 0 else ""
        agree = f"{row.agreeing} of {row.compared}" if row.compared else NO_VALUE
        difference = sign + format_spread(row.difference, score)
        means = {name: spread._replace(deviation=None) for name, spread in row.costs.items()}
        rounds = row.rounds and row.rounds._replace(deviation=None)
        cells.append([row.variant, row.seeds, format_spread(row.value, score), difference, agree, _rounds(rounds)])
        cells[-1] += _cost_cells(means)
    return stackable_table(columns, cells, _STACKED, right=range(1, len(columns)))


def target_table(rows: Sequence[ComparisonRow]) -> Table:
    """The rounds and costs until each variant first reaches the target value."""
    columns = ["variant", "seeds reach it", "rounds", *_COST_TITLES]
    cells = []
    for row in rows:
        cells.append([row.variant, f"{row.reached} of {row.seeds}", _rounds(row.rounds_to_target)])
        cells[-1] += _cost_cells(row.costs_to_target)
    return table(columns, cells, right=range(1, len(columns)))


def _cost_cells(costs: Mapping[str, Spread]) -> list[str]:
    return [format_spread(costs.get(name), formatted) for name, (_, formatted) in _COSTS.items()]


def _rounds(spread: Spread | None) -> str:
    return format_spread(spread, "{:.3g}".format)
