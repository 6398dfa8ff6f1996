"""The figures of a sweep against plain formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from undergrowth.report.run_record import RunRecord
from undergrowth.sweeps.comparison import VariantRuns, compare


def record(accuracies: list[float]) -> RunRecord:
    """A finished run. Every round takes 2 seconds, 30 bytes down, 10 up and 5 joules."""
    rounds = [
        {
            "round": number, "accuracy": accuracy, "loss": 1.0, "simulated_seconds": 2.0 * number,
            "bytes_down": 30 * number, "bytes_up": 10 * number, "joules": 5.0 * number,
        }
        for number, accuracy in enumerate(accuracies, 1)
    ]  # fmt: skip
    row: dict[str, Any] = {"status": "done", "summary": {**rounds[-1], "compute_seconds": 1.0}, "experiment": {}}
    return RunRecord("run", row, rounds, [], "")


CURVES = {
    "first": {0: [0.1, 0.5, 0.6], 1: [0.2, 0.4, 0.5], 2: [0.3, 0.4, 0.7]},
    "other": {0: [0.5, 0.8], 2: [0.4, 0.6], 3: [0.1, 0.2]},
}
VARIANTS = [
    VariantRuns(name, {seed: record(curve) for seed, curve in curves.items()}, {}) for name, curves in CURVES.items()
]


def test_means_and_deviations_over_seeds() -> None:
    first, other = compare(VARIANTS, None)
    for row, curves in ((first, CURVES["first"]), (other, CURVES["other"])):
        last = [curve[-1] for curve in curves.values()]
        rounds = [len(curve) for curve in curves.values()]
        assert row.seeds == 3 and row.value == pytest.approx((np.mean(last), np.std(last, ddof=1)))
        assert row.rounds == pytest.approx((np.mean(rounds), np.std(rounds, ddof=1)))
        for name, cost in (("simulated_seconds", 2), ("bytes", 40), ("joules", 5)):
            assert row.costs[name].mean == pytest.approx(cost * np.mean(rounds))
    assert first.rounds_to_target is None and not first.costs_to_target


def test_differences_are_paired_by_seed() -> None:
    first, other = compare(VARIANTS, None)
    assert first.difference is None and first.compared == 0
    differences = [0.8 - 0.6, 0.6 - 0.7]  # seeds 0 and 2; the others are missing on one side
    assert other.difference == pytest.approx((np.mean(differences), np.std(differences, ddof=1)))
    assert (other.agreeing, other.compared) == (1, 2)


def test_rounds_and_costs_until_an_accuracy_is_first_reached() -> None:
    first, other = compare(VARIANTS, 0.5)
    rounds = [2, 3, 3]
    assert first.reached == 3 and first.rounds_to_target == pytest.approx((np.mean(rounds), np.std(rounds, ddof=1)))
    assert first.costs_to_target["bytes"].mean == pytest.approx(40 * np.mean(rounds))
    assert other.reached == 2 and other.costs_to_target["joules"] == pytest.approx((7.5, np.std([5, 10], ddof=1)))
    assert other.flat()["simulated_seconds_to_accuracy"] == pytest.approx(3.0)


def test_one_seed_has_no_deviation_and_no_run_has_no_figures() -> None:
    only = VariantRuns("only", {0: record([0.5])}, {})
    row, empty = compare([only, VariantRuns("empty", {}, {0: "no luck"})], 0.9)
    assert row.value == (0.5, None) and row.reached == 0
    figures = empty.flat()
    assert (figures["seeds"], figures["accuracy"], figures["difference"], figures["bytes"]) == (0, None, None, None)
