"""Who took part: timelines, classes of devices, lost classes; flat, in a tree, asynchronous, unfinished, very many."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import plotly.graph_objects as go
import pytest

import undergrowth as ug
from tests.report.conftest import record
from undergrowth.exchange import Entry
from undergrowth.report.page import page
from undergrowth.report.participation import by_tier, lost_classes
from undergrowth.report.partition import partition_of, tiers
from undergrowth.report.record import learning_efficiency, read
from undergrowth.report.timeline import timeline
from undergrowth.report.traffic import Traffic, traffic
from undergrowth.runs import Store

RUNS = {
    "flat": {"fleet": "mixed-edge", "deadline": 0.011},  # which about half of them miss
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
    found = dict(zip(RUNS, read(store, names, exchanges=True)))
    store.close()
    return found


def checked(figure) -> dict:
    go.Figure(figure)
    json.dumps(figure, allow_nan=False)
    return figure


@pytest.mark.parametrize("kind", RUNS)
def test_counts_agree_with_the_rounds(records, kind: str) -> None:
    made = records[kind]
    counts = made.traffic.counts.values()
    assert all(name.startswith("device-") for name in made.traffic.counts)
    for row in counts:
        assert row["asked"] == row["rounds"] + row["late"] + row["lost"] + row["refused"]
    if kind != "tree":  # there the rounds of the root count edge servers
        for key, counted in (("arrived", "rounds"), ("late", "late"), ("lost", "lost")):
            assert sum(row[key] for row in made.rounds) == sum(row[counted] for row in counts)


@pytest.mark.parametrize("kind", RUNS)
def test_timelines(records, kind: str) -> None:
    made = records[kind]
    classes = tiers(made, None)
    figure = checked(timeline(made, "it", classes))
    bars = [trace for trace in figure["data"] if trace["type"] == "bar"]
    drawn = sum(len(trace["x"]) for trace in bars)
    assert drawn == 3 * len(made.traffic.beginning)  # download, computing, upload
    assert {name.partition(" · ")[0] for trace in bars for name in trace["y"]} <= set(classes.values())
    end = max(base + x for trace in bars for base, x in zip(trace["base"], trace["x"]))
    unit = 1000 if "milli" in figure["layout"]["xaxis"]["title"]["text"] else 1
    assert end == pytest.approx(made.totals["simulated_seconds"] * unit)


def test_the_deadline_is_marked(records) -> None:
    made = records["flat"]
    figure = timeline(made, "it", {})
    assert "the deadline ends a round" in [trace.get("name") for trace in figure["data"]]
    assert [line["x0"] for line in figure["layout"]["shapes"]] == pytest.approx([11, 22, 33])
    assert "10 devices" in figure["layout"]["title"]["text"] or "9 devices" in figure["layout"]["title"]["text"]


def test_by_class_of_device(records) -> None:
    made = records["flat"]
    figure = checked(by_tier(made, "it", tiers(made, None)))
    totals = [sum(values) for values in zip(*(trace["x"] for trace in figure["data"]))]
    assert totals == pytest.approx([1.0] * len(totals))
    assert {trace["name"] for trace in figure["data"]} == {"arrived", "late"}
    assert by_tier(made, "it", {}) is None


def test_lost_classes(records) -> None:
    made = records["flat"]
    population = partition_of(made)[1]
    figure = checked(lost_classes(made, "it", population))
    names = [trace["name"] for trace in figure["data"]]
    assert names[:2] == ["arrived at least once", "asked, never arrived"]
    gone = [device for device, row in made.traffic.counts.items() if not row["rounds"]]
    held = population.counts()
    of_them = held[[population.devices.index(device) for device in gone]].sum(axis=0) / held.sum(axis=0)
    assert figure["data"][1]["y"] == pytest.approx(of_them.tolist())
    assert lost_classes(made, "it", None) is None


def test_an_unfinished_run_finds_its_classes_again(records) -> None:
    made = records["flat"]
    unfinished = replace(made, devices=[])
    assert tiers(unfinished, None) == {}
    assert tiers(unfinished, partition_of(made)[1]) == tiers(made, None)


def test_pages(records) -> None:
    text = page(list(records.values())).render()
    for words in ("Who worked when", "Who took part, by class of device", "Whose classes were lost"):
        assert words in text
    nothing = page([record(rounds=0, devices=0, status="running")]).render()
    assert "Who worked when" not in nothing and "Whose classes" not in nothing


def test_very_many_devices(tmp_path: Path) -> None:
    """Ten thousand devices, twenty rounds; the page takes seconds, and the timeline shows a sample of them."""
    made = record(devices=10_000, rounds=20, settings={"fleet": "mixed-edge"})
    store = Store(tmp_path, create=True)
    for row in made.rounds:
        number = row["round"]
        entries = [
            Entry(number, "server", device["device"], "arrived", "", 1, 1, 1.0, 1, 2.0 * number - 2, 0.5, 1.0, 0.5, 1.0)
            for device in made.devices
        ]
        store.finish_round("run", [row], entries, None)
    began = time.perf_counter()
    made = replace(made, traffic=traffic(store, "run"))
    store.close()
    text = page([made]).render()
    assert time.perf_counter() - began < 5
    assert len(text) < 6_000_000
    assert "60 of 10 000 devices, evenly chosen, the first 10 of 20 rounds" in text
    assert sum(row["asked"] for row in made.traffic.counts.values()) == 200_000


def test_nothing_to_tell() -> None:
    made = record(rounds=0, devices=0)
    assert made.traffic == Traffic()
    assert timeline(made, "it", {}) is None and by_tier(made, "it", {}) is None


def test_learning_efficiency(records) -> None:
    made = records["flat"]
    best = max(row["accuracy"] for row in made.rounds)
    spent = sum(row["compute_seconds"] for row in made.traffic.counts.values())
    assert made.totals["learning_efficiency"] == pytest.approx(best / spent)
    assert learning_efficiency([], 1.0) is None
    assert learning_efficiency(made.rounds, 0.0) is None and learning_efficiency(made.rounds, None) is None
