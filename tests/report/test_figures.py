"""Figures: plotly takes them, whatever the run was like."""

from __future__ import annotations

import json

import plotly.graph_objects as go
import pytest

from tests.report.conftest import record
from undergrowth.report import device_figures, figures
from undergrowth.report.record import labels


def drawn(records):
    names = labels(records)
    found = [figures.per_round(records, names, key) for key in ("accuracy", "loss")]
    found += [figures.against_cost(records, names, cost) for cost in ("seconds", "bytes", "flops", "joules")]
    found += [device_figures.distribution(records, names, key) for key in ("accuracy", "samples", "rounds")]
    found += [device_figures.cloud(records, names)]
    found += [device_figures.costs(records, names, cost) for cost in device_figures.COSTS]
    found += [figures.outcomes(each, name) for each, name in zip(records, names)]
    return found


def check(figure) -> int:
    """Valid for plotly, plain JSON; returns how many letters it takes."""
    go.Figure(figure)
    return len(json.dumps(figure, allow_nan=False))


@pytest.mark.parametrize("rounds", [1, 3, 200])
def test_one_run(rounds: int) -> None:
    found = drawn([record(rounds=rounds)])
    assert all(found)
    assert all(check(figure) for figure in found)


def test_three_runs_have_colours_of_their_own() -> None:
    runs = [
        record(f"run-000{n}", settings={"method": method}) for n, method in enumerate(("fedavg", "fedprox", "local"))
    ]
    for figure in drawn(runs)[:-3]:
        check(figure)
        colours = [(trace.get("line") or {}).get("color") or trace["marker"]["color"] for trace in figure["data"]]
        assert len(set(colours)) == 3
        assert [trace["legendgroup"] for trace in figure["data"]] == ["run-0", "run-1", "run-2"]


def test_more_runs_than_colours_differ_in_dashes() -> None:
    runs = [record(f"run-{n:04d}", settings={"run": {"seed": n}}) for n in range(12)]
    lines = figures.per_round(runs, labels(runs), "accuracy")["data"]
    assert len({(line["line"]["color"], line["line"]["dash"]) for line in lines}) == 12


def test_a_run_that_diverged(diverged) -> None:
    figure = figures.per_round([diverged], ["it"], "loss")
    assert figure["data"][0]["y"] == [1.0, 1e30, None, None]
    assert figure["layout"]["yaxis"]["type"] == "log"
    check(figure)


def test_nothing_to_draw() -> None:
    assert not any(drawn([record(rounds=0, devices=0)]))
    nothing_measured = drawn([record(accurate=False)])
    assert nothing_measured[6] is None and nothing_measured[9] is None
    assert nothing_measured[7] is not None


def test_ten_thousand_devices_take_no_more_room() -> None:
    many = record(devices=10_000)
    found = drawn([many])
    assert sum(check(figure) for figure in found) < 300_000
    cloud = found[9]
    assert len(cloud["data"][0]["x"]) <= 1500 and "of 10 000 shown" in cloud["layout"]["title"]["text"]
    for figure, devices in zip(found[6:9], (10_000,) * 3):
        assert sum(figure["data"][0]["y"]) == devices  # every device is in one bar


def test_bars_hold_every_device() -> None:
    for devices in (1, 2, 17, 400, 3000):
        for key in ("accuracy", "samples", "rounds"):
            figure = device_figures.distribution([record(devices=devices)], ["it"], key)
            assert sum(figure["data"][0]["y"]) == devices


def test_devices_that_were_never_asked_are_in_no_box() -> None:
    made = record(devices=2)
    made.devices[0] = {key: made.devices[0][key] for key in ("device", "tier", "samples", "accuracy")} | {"rounds": 0}
    assert device_figures.costs([made], ["it"], "bytes")["data"][0]["x"] == ["fast"]


def test_other_models_are_drawn_too() -> None:
    made = record()
    for row in made.rounds:
        row["accuracy/half"] = 0.5
    figure = figures.per_round([made], ["it"], "accuracy")
    assert [line["name"] for line in figure["data"]] == ["it", "half"]
    check(figure)


@pytest.mark.parametrize(("seconds", "unit"), [(0.01, "milliseconds"), (5, "seconds"), (300, "minutes"), (1e5, "days")])
def test_time_in_units_that_fit(seconds: float, unit: str) -> None:
    made = record(rounds=1)
    made.rounds[0]["simulated_seconds"] = seconds
    figure = figures.against_cost([made], ["it"], "seconds")
    assert figure["layout"]["xaxis"]["title"]["text"] == f"simulated {unit}"
