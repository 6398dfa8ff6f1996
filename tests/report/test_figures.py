"""Figures are valid for plotly for every kind of run."""

from __future__ import annotations

import json

import plotly.graph_objects as go
import pytest

from tests.report.conftest import record
from undergrowth.report import curves, device_figures, figures
from undergrowth.report.groups import group_records


def all_figures(records):
    groups = group_records(records)
    drawn = [curves.metric_per_round(groups, key) for key in ("accuracy", "loss")]
    drawn += [curves.metric_against_cost(groups, "accuracy", cost) for cost in ("seconds", "bytes", "flops", "joules")]
    drawn += [device_figures.distribution(groups, key) for key in ("accuracy", "samples", "rounds")]
    drawn += [device_figures.metric_against_samples(groups, "accuracy")]
    drawn += [device_figures.cost_boxes(groups, cost) for cost in device_figures.COSTS]
    drawn += [figures.outcomes_per_round(group.records[0], group.label) for group in groups]
    return drawn


def check(figure) -> int:
    """Checks that plotly accepts the figure and that it is plain JSON; returns the length of the JSON."""
    go.Figure(figure)
    return len(json.dumps(figure, allow_nan=False))


@pytest.mark.parametrize("rounds", [1, 3, 200])
def test_one_run(rounds: int) -> None:
    drawn = all_figures([record(rounds=rounds)])
    assert all(drawn)
    assert all(check(figure) for figure in drawn)


def test_groups_have_different_colours() -> None:
    runs = [
        record(f"run-000{n}", settings={"method": method}) for n, method in enumerate(("fedavg", "fedprox", "local"))
    ]
    for figure in all_figures(runs)[:-3]:
        check(figure)
        colours = [(trace.get("line") or {}).get("color") or trace["marker"]["color"] for trace in figure["data"]]
        assert len(set(colours)) == 3
        assert [trace["legendgroup"] for trace in figure["data"]] == ["group-0", "group-1", "group-2"]


def test_more_groups_than_colours_differ_in_dashes() -> None:
    runs = [record(f"run-{n:04d}", settings={"train": {"lr": n / 100 + 0.01}}) for n in range(12)]
    lines = curves.metric_per_round(group_records(runs), "accuracy")["data"]
    assert len({(line["line"]["color"], line["line"]["dash"]) for line in lines}) == 12


def test_a_diverged_run(diverged) -> None:
    figure = curves.metric_per_round(group_records([diverged]), "loss")
    assert figure["data"][0]["y"] == [1.0, 1e30]
    assert figure["layout"]["yaxis"]["type"] == "log"
    check(figure)


def test_nothing_to_draw() -> None:
    assert not any(all_figures([record(rounds=0, devices=0)]))
    nothing_measured = all_figures([record(accurate=False)])
    assert nothing_measured[6] is None and nothing_measured[9] is None
    assert nothing_measured[7] is not None


def test_figures_of_many_devices_are_small() -> None:
    drawn = all_figures([record(devices=10_000)])
    assert sum(check(figure) for figure in drawn) < 300_000
    scatter = drawn[9]
    assert len(scatter["data"][0]["x"]) <= 1500 and "of 10 000 shown" in scatter["layout"]["title"]["text"]
    for figure in drawn[6:9]:
        assert sum(figure["data"][0]["y"]) == 10_000  # every device is in one bar


def test_every_device_is_in_one_bar() -> None:
    for devices in (1, 2, 17, 400, 3000):
        for key in ("accuracy", "samples", "rounds"):
            figure = device_figures.distribution(group_records([record(devices=devices)]), key)
            assert sum(figure["data"][0]["y"]) == devices


def test_devices_without_costs_are_in_no_box() -> None:
    run = record(devices=2)
    run.devices[0] = {key: run.devices[0][key] for key in ("device", "tier", "samples", "accuracy")} | {"rounds": 0}
    assert device_figures.cost_boxes(group_records([run]), "bytes")["data"][0]["x"] == ["fast"]


def test_other_models_are_drawn() -> None:
    run = record()
    for row in run.rounds:
        row["accuracy/half"] = 0.5
    figure = curves.metric_per_round(group_records([run]), "accuracy")
    assert [line["name"] for line in figure["data"]] == ["fedavg", "half"]
    check(figure)


@pytest.mark.parametrize(("seconds", "unit"), [(0.01, "milliseconds"), (5, "seconds"), (300, "minutes"), (1e5, "days")])
def test_units_of_time(seconds: float, unit: str) -> None:
    run = record(rounds=1)
    run.rounds[0]["simulated_seconds"] = seconds
    figure = curves.metric_against_cost(group_records([run]), "accuracy", "seconds")
    assert figure["layout"]["xaxis"]["title"]["text"] == f"simulated {unit}"
