"""The table of a sweep: means and deviations over seeds, and differences from the first variant, seed by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from undergrowth.core import Metric
from undergrowth.report.groups import Spread, spread
from undergrowth.report.run_record import RunRecord, finite
from undergrowth.runs.stop_section import BUDGETS

ACCURACY = Metric("accuracy")


@dataclass(frozen=True)
class VariantRuns:
    """The runs of one variant by their seeds: the finished ones, and why the others failed."""

    name: str
    records: Mapping[int, RunRecord]
    failed: Mapping[int, str]


@dataclass(frozen=True)
class ComparisonRow:
    """One variant of a sweep. Values over its seeds; None where no run is finished."""

    variant: str
    seeds: int  # that are finished
    value: Spread | None  # of the main metric
    difference: Spread | None  # value minus that of the first variant with the same seed; None for the first
    agreeing: int  # seeds whose difference has the sign of the mean difference
    compared: int  # seeds that both variants have
    rounds: Spread | None
    costs: Mapping[str, Spread]
    reached: int  # seeds that reached the target value
    rounds_to_target: Spread | None  # over the seeds that reached it
    costs_to_target: Mapping[str, Spread]

    def flat(self, metric: str = "accuracy") -> dict[str, Any]:
        """The row as one dictionary of numbers and texts. `metric`: the name of the main metric."""
        spreads = {metric: self.value, "difference": self.difference, "rounds": self.rounds}
        spreads |= {name: self.costs.get(name) for name in BUDGETS}
        spreads |= {f"rounds_to_{metric}": self.rounds_to_target}
        spreads |= {f"{name}_to_{metric}": self.costs_to_target.get(name) for name in BUDGETS}
        figures: dict[str, Any] = {}
        for name, found in spreads.items():
            figures[name], figures[f"{name}_deviation"] = found or (None, None)
        counts = {"agreeing": self.agreeing, "compared": self.compared, "reached": self.reached}
        return {"variant": self.variant, "seeds": self.seeds, **counts, **figures}


def compare(variants: Sequence[VariantRuns], target: float | None, metric: Metric = ACCURACY) -> list[ComparisonRow]:
    """A row for each variant. `target`: the value of `metric` for the rounds and costs until it is first reached."""
    first = _values(variants[0], metric)
    rows = []
    for variant in variants:
        records, values = list(variant.records.values()), _values(variant, metric)
        pairs = [] if variant is variants[0] else [values[seed] - first[seed] for seed in values if seed in first]
        difference = spread(pairs)
        agreeing = 0 if difference is None else sum(_sign(each) == _sign(difference.mean) for each in pairs)
        reached = (
            [] if target is None else [row for record in records if (row := record.first_round_with(target, metric))]
        )
        rows.append(
            ComparisonRow(
                variant.name,
                seeds=len(records),
                value=spread(values.values()),
                difference=difference,
                agreeing=agreeing,
                compared=len(pairs),
                rounds=spread(len(record.rounds) for record in records),
                costs=_costs([record.totals for record in records]),
                reached=len(reached),
                rounds_to_target=spread(row["round"] for row in reached),
                costs_to_target=_costs(reached),
            )
        )
    return rows


def _values(variant: VariantRuns, metric: Metric) -> dict[int, float]:
    found = {seed: finite(record.totals.get(metric.name)) for seed, record in variant.records.items()}
    return {seed: value for seed, value in found.items() if value is not None}


def _costs(rows: Sequence[Mapping[str, Any]]) -> dict[str, Spread]:
    spreads = {name: spread(cost(row) for row in rows) for name, cost in BUDGETS.items()}
    return {name: each for name, each in spreads.items() if each is not None}


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
