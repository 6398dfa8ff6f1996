"""Participation figures of flat, hierarchical, asynchronous and unfinished runs, and of runs with many devices."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import plotly.graph_objects as go
import pytest

import undergrowth as ug
from tests.report.conftest import record
from undergrowth.exchange import Entry
from undergrowth.report import device_activity
from undergrowth.report.device_activity import DeviceActivity, load_activity
from undergrowth.report.participation import lost_classes, outcomes_by_tier
from undergrowth.report.partition import rebuild_partition, tiers_by_device
from undergrowth.report.run_page import build_page
from undergrowth.report.run_record import learning_efficiency, load_records
from undergrowth.report.timeline_figure import timeline_figure
from undergrowth.runs import Store

RUNS = {
    "flat": {"fleet": "mixed-edge", "deadline": 0.011},  # about half of the devices miss it
    "tree": {"fleet": "mixed-edge", "deadline": 0.011, "topology": "tree:2x5"},
    "failing": {"fleet": "mixed-edge", "dropout": 0.4},
    "async": {"method": "fedasync", "fleet": "mixed-edge", "rounds": 30},
}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = str(tmp_path_factory.mktemp("runs"))
    usual = {"model": "logistic", "rounds": 3, "clients": 10, "out": folder, "progress": False}
    names = [ug.run(**{**usual, **settings}).run for settings in RUNS.values()]
    store = Store(folder)
    loaded = dict(zip(RUNS, load_records(store, names, activity=True), strict=True))
    store.close()
    return loaded


def check(figure) -> dict:
    go.Figure(figure)
    json.dumps(figure, allow_nan=False)
    return figure


@pytest.mark.parametrize("kind", RUNS)
def test_counts_agree_with_the_rounds(records, kind: str) -> None:
    run = records[kind]
    counts = run.activity.counts.values()
    assert all(name.startswith("device-") for name in run.activity.counts)
    for row in counts:
        assert row["asked"] == row["arrived"] + row["late"] + row["lost"] + row["refused"]
    if kind != "tree":  # the rounds of the root count edge servers instead of devices
        for key, counted in (("arrived", "arrived"), ("late", "late"), ("lost", "lost")):
            assert sum(row[key] for row in run.rounds) == sum(row[counted] for row in counts)


@pytest.mark.parametrize("kind", RUNS)
def test_timelines(records, kind: str) -> None:
    run = records[kind]
    classes = tiers_by_device(run, None)
    figure = check(timeline_figure(run, "label", classes))
    bars = [trace for trace in figure["data"] if trace["type"] == "bar"]
    drawn = sum(len(trace["x"]) for trace in bars)
    assert drawn == 3 * len(run.activity.entries)  # download, computing, upload
    assert {name.partition(" · ")[0] for trace in bars for name in trace["y"]} <= set(classes.values())
    end = max(base + x for trace in bars for base, x in zip(trace["base"], trace["x"], strict=True))
    unit = 1000 if "milli" in figure["layout"]["xaxis"]["title"]["text"] else 1
    assert end == pytest.approx(run.totals["simulated_seconds"] * unit)


def test_the_deadline_is_marked(records) -> None:
    run = records["flat"]
    figure = timeline_figure(run, "label", {})
    assert "end of a round by the deadline" in [trace.get("name") for trace in figure["data"]]
    assert [line["x0"] for line in figure["layout"]["shapes"]] == pytest.approx([11, 22, 33])
    assert "10 devices" in figure["layout"]["title"]["text"] or "9 devices" in figure["layout"]["title"]["text"]


def test_outcomes_by_tier(records) -> None:
    run = records["flat"]
    figure = check(outcomes_by_tier(run, "label", tiers_by_device(run, None)))
    totals = [sum(values) for values in zip(*(trace["x"] for trace in figure["data"]), strict=True)]
    assert totals == pytest.approx([1.0] * len(totals))
    assert {trace["name"] for trace in figure["data"]} == {"arrived", "late"}
    assert outcomes_by_tier(run, "label", {}) is None


def test_lost_classes(records) -> None:
    run = records["flat"]
    population = rebuild_partition(run)[1]
    figure = check(lost_classes(run, "label", population))
    names = [trace["name"] for trace in figure["data"]]
    assert names[:2] == ["arrived at least once", "asked, never arrived"]
    lost = [device for device, row in run.activity.counts.items() if not row["rounds"]]
    held = population.counts()
    lost_fractions = held[[population.devices.index(device) for device in lost]].sum(axis=0) / held.sum(axis=0)
    assert figure["data"][1]["y"] == pytest.approx(lost_fractions.tolist())
    assert lost_classes(run, "label", None) is None


def test_device_classes_of_an_unfinished_run_are_rebuilt(records) -> None:
    run = records["flat"]
    unfinished = replace(run, devices=[])
    assert tiers_by_device(unfinished, None) == {}
    assert tiers_by_device(unfinished, rebuild_partition(run)[1]) == tiers_by_device(run, None)


def test_pages(records) -> None:
    text = build_page(list(records.values())).render()
    for words in ("Timeline", "Participation by device class", "Lost classes"):
        assert words in text
    empty = build_page([record(rounds=0, devices=0, status="running")]).render()
    assert "Timeline" not in empty and "Lost classes" not in empty


def test_many_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a limited number of exchanges is read one by one, and the timeline shows a selection of the devices."""
    monkeypatch.setattr(device_activity, "_MAX_ENTRIES", 10_000)
    run = record(devices=1_000, rounds=20, settings={"fleet": "mixed-edge"})
    store = Store(tmp_path, create=True)
    for row in run.rounds:
        number = row["round"]
        entries = [
            Entry(number, "server", device["device"], "arrived", "", 1, 1, 2.0 * number - 2, 0.5, 1.0, 0.5, 1.0, 1, 1.0)
            for device in run.devices
        ]
        store.finish_round("run", [row], entries, None)
    run = replace(run, activity=load_activity(store, "run"))
    store.close()
    text = build_page([run]).render()
    assert len(text) < 6_000_000
    assert "60 of 1 000 devices, the first 10 of 20 rounds" in text
    assert sum(row["asked"] for row in run.activity.counts.values()) == 20_000


def test_no_figures_without_exchanges() -> None:
    run = record(rounds=0, devices=0)
    assert run.activity == DeviceActivity()
    assert timeline_figure(run, "label", {}) is None and outcomes_by_tier(run, "label", {}) is None


def test_learning_efficiency(records) -> None:
    run = records["flat"]
    best = max(row["accuracy"] for row in run.rounds)
    spent = sum(row["compute_seconds"] for row in run.activity.counts.values())
    assert run.totals["learning_efficiency"] == pytest.approx(best / spent)
    assert learning_efficiency([], 1.0) is None
    assert learning_efficiency(run.rounds, 0.0) is None and learning_efficiency(run.rounds, None) is None
