"""Figures about the accuracies of all devices."""

from __future__ import annotations

import statistics

import pytest

from undergrowth.runs.relative_accuracy import PersonalAccuracy, changes, distribution, from_rows, tenth


@pytest.mark.parametrize(
    ("devices", "size"), [(1, 1), (2, 1), (9, 1), (10, 1), (11, 2), (20, 2), (21, 3), (10_000, 1000)]
)
def test_a_tenth_is_rounded_up_and_never_empty(devices: int, size: int) -> None:
    assert tenth(devices) == size


@pytest.mark.parametrize("devices", [1, 2, 9, 10, 25])
def test_the_tenths_are_those_of_a_sorted_list(devices: int) -> None:
    values = [((7 * number) % devices) / devices - 0.3 for number in range(devices)]
    found, ordered = distribution(values), sorted(values)
    assert found is not None
    size = -(-devices // 10)
    assert found.devices == devices
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert found.variance == pytest.approx(statistics.pvariance(values))
    assert found.worst_mean == pytest.approx(statistics.fmean(ordered[:size]))
    assert found.worst_variance == pytest.approx(statistics.pvariance(ordered[:size]))
    assert found.best_mean == pytest.approx(statistics.fmean(ordered[-size:]))
    assert found.best_variance == pytest.approx(statistics.pvariance(ordered[-size:]))
    assert found.below_zero == sum(value < -1e-9 for value in values)
    assert found.fraction_below_zero == found.below_zero / devices


def test_ties_at_the_border_of_a_tenth_do_not_matter() -> None:
    values = [0.1] * 15 + [0.5] * 5  # the worst two and the best two are each among equals
    shuffled = values[::-1]
    assert distribution(values) == distribution(shuffled)
    found = distribution(values)
    assert found is not None
    assert (found.worst_mean, found.best_mean) == (0.1, 0.5)
    assert found.worst_variance == found.best_variance == 0


def test_equal_accuracies_are_not_below_zero() -> None:
    """Three tenths and 0.1 + 0.2 differ in the last digit, and are the same accuracy."""
    found = distribution([0.3 - (0.1 + 0.2), 0.0])
    assert found is not None and found.below_zero == 0
    assert distribution([]) is None


def test_relative_accuracy_by_model_and_by_device_class() -> None:
    rows = [(device, "local", accuracy) for device, accuracy in [("a", 0.5), ("b", 0.25), ("c", 1.0)]]
    rows += [(device, "federated", 0.75) for device in "abc"]
    found = from_rows(rows, {"a": "pi", "b": "pi", "c": "nano"})
    assert isinstance(found, PersonalAccuracy)
    assert found.relative("federated") == [0.25, 0.5, -0.25]
    tiers = found.by_tier("federated")
    assert {tier: (each.devices, each.below_zero) for tier, each in tiers.items()} == {"nano": (1, 1), "pi": (2, 0)}
    local, federated = found.figures()
    assert local["relative"] is None and federated["relative"].mean == pytest.approx(1 / 6)
    assert found.rows()[2] == {"device": "c", "tier": "nano", "local": 1.0, "federated": 0.75}
    assert from_rows([], {}) is None


def test_who_gains_and_who_loses_between_two_runs() -> None:
    found = changes({"a": 0.5, "b": 0.5, "c": 0.5, "gone": 1.0}, {"a": 0.75, "b": 0.25, "c": 0.5, "new": 1.0})
    assert found is not None
    assert (found.devices, found.gain, found.lose, found.same) == (3, 1, 1, 1)
    assert found.largest_losses == (("b", -0.25),)
    assert changes({"a": 1.0}, {"b": 1.0}) is None
