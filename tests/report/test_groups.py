"""Groups of runs: which runs they have, what they are called, their means, and their curves."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from tests.report.conftest import record
from undergrowth.core import InputError
from undergrowth.report import curves, device_figures
from undergrowth.report.groups import group_records
from undergrowth.report.run_record import short_labels


def runs():
    described = [
        {"method": method, "train": {"lr": lr}, "run": {"seed": seed}}
        for method in ("fedavg", {"name": "fedprox", "mu": 0.5}) for lr in (0.1, 0.3) for seed in (0, 1, 2)
    ]  # fmt: skip
    return [record(f"run-{number:04d}", settings=settings) for number, settings in enumerate(described)]


def names(*arguments) -> dict[str, int]:
    return {group.label: len(group.records) for group in group_records(*arguments)}


def test_the_default_groups_runs_that_differ_in_the_seed() -> None:
    assert names(runs()) == {
        "fedavg, lr 0.1": 3, "fedavg, lr 0.3": 3, "fedprox, mu 0.5, lr 0.1": 3, "fedprox, mu 0.5, lr 0.3": 3,
    }  # fmt: skip
    assert names(runs()[:3]) == {"fedavg": 3}


def test_groups_by_chosen_settings() -> None:
    assert names(runs(), ["train.lr"]) == {"lr 0.1": 6, "lr 0.3": 6}
    assert names(runs(), ["method"]) == {"fedavg": 6, "fedprox": 6}
    assert names(runs(), "method") == names(runs(), ["method"])
    assert names(runs(), ["method", "run.seed"])["fedprox, seed 2"] == 2
    with pytest.raises(InputError, match=r"group 'train\.ls' is not a setting of these runs"):
        group_records(runs(), ["train.ls"])


def test_labels_have_more_parts_if_they_need_them() -> None:
    described = [{"train": {"lr": lr, "batch": 8 * lr, "epochs": lr, "momentum": 0.1 * lr}} for lr in (1, 2)]
    varied = [record(f"run-{n}", settings={**described[n // 2], "run": {"seed": n % 2}}) for n in range(4)]
    labels = short_labels(varied)
    # Not all five settings: these two tell the runs apart.
    assert labels == [f"fedavg, epochs {epochs}, seed {seed}" for epochs in (1, 2) for seed in (0, 1)]


def test_mean_and_deviation() -> None:
    group = group_records(runs()[:3])[0]
    for place, (member, accuracy) in enumerate(zip(group.records, (0.5, 0.7, 0.9), strict=True)):
        member.row["summary"].update(accuracy=accuracy, bytes_up=place, bytes_down=10)
    assert group.spread("accuracy") == (pytest.approx(0.7), pytest.approx(0.2))  # (0.2² + 0 + 0.2²) / 2 = 0.2²
    assert group.spread("bytes") == (11, 1)
    assert group_records(runs()[:1])[0].spread("accuracy").deviation is None


def test_the_mean_of_curves_that_are_known_at_other_places() -> None:
    """Beside a loop over the places, with straight lines between the points of each run."""
    drawn = [([1.0, 2.0, 4.0], [0.0, 1.0, 3.0]), ([0.5, 3.0, 5.0], [1.0, 6.0, 0.0])]
    curve = curves.mean_curve(drawn)
    assert curve.x.tolist() == [1.0, 2.0, 3.0, 4.0]  # where both are known
    for at, mean, deviation in zip(curve.x, curve.y, curve.deviation, strict=True):
        values = []
        for x, y in drawn:
            left = max(place for place in range(len(x) - 1) if x[place] <= at)
            slope = (y[left + 1] - y[left]) / (x[left + 1] - x[left])
            values.append(y[left] + slope * (at - x[left]))
        assert math.isclose(mean, statistics.fmean(values)) and math.isclose(deviation, statistics.stdev(values))


def test_curves_of_odd_runs() -> None:
    assert curves.mean_curve([([], []), ([], [])]) is None
    assert curves.mean_curve([([], []), ([1.0], [0.5])]).runs == 1
    apart = curves.mean_curve([([1.0], [0.2]), ([3.0], [0.4])])
    assert (apart.x.tolist(), apart.y.tolist()) == ([2.0], [pytest.approx(0.3)])
    huge = curves.mean_curve([([1.0], [1e300]), ([1.0], [-1e300])])
    assert np.isfinite(huge.y).all() and np.isfinite(huge.deviation).all()
    many = [float(number) for number in range(5000)]
    assert len(curves.mean_curve([(many, many), (many, many)]).x) == 200


def test_a_band_goes_around_the_mean() -> None:
    members = runs()[:3]
    for member, shift in zip(members, (-0.1, 0.0, 0.1), strict=True):
        for row in member.rounds:
            row["accuracy"] += shift
    band, line = curves.metric_per_round(group_records(members), "accuracy")["data"]
    assert line["y"] == [0.25, 0.5, 0.75] and line["x"] == [1, 2, 3]
    assert band["x"] == [1, 2, 3, 3, 2, 1] and band["y"] == pytest.approx([0.15, 0.4, 0.65, 0.85, 0.6, 0.35])
    assert band["legendgroup"] == line["legendgroup"] and band["hoverinfo"] == "skip"


def test_devices_of_several_groups_are_boxes() -> None:
    groups = group_records(runs(), ["method"])
    figure = device_figures.distribution(groups, "accuracy")
    values = sorted(device["accuracy"] for device in groups[0].devices)
    box = figure["data"][0]
    assert len(values) == 6 * 5 and len(figure["data"]) == 2
    assert (box["lowerfence"], box["median"], box["upperfence"]) == ([values[0]], [statistics.median(values)], [0.4])
    assert figure["layout"]["yaxis"]["ticktext"] == ["fedavg", "fedprox"]


def test_a_run_that_was_repeated_is_not_counted_twice() -> None:
    seeds = [record(f"run-{time}-{seed}", settings={"run": {"seed": seed}}) for time in (10, 20) for seed in (0, 1)]
    assert names(seeds) == {"fedavg (10-0)": 2, "fedavg (20-0)": 2}
    assert names(seeds, ["method"]) == {"fedavg": 4}
