"""Devices that drop out, go offline or run empty: what a round loses, what time does, and when a run ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import undergrowth as ug
from undergrowth.core import Context
from undergrowth.runs.execution import start

from ..fleet_files import fleet_file
from ..runs.objects import Own, linear
from ..stopping import facts, stopped_and_resumed

DEVICES = tuple(Own().devices)
LATENCY = 1.0  # a job of the fleet below takes two seconds and a hair

Run = Callable[..., ug.Result]


@pytest.fixture
def slow(tmp_path: Path) -> str:
    return fleet_file(tmp_path, plain={"share": 1.0, "latency": LATENCY})


@pytest.fixture
def run(tmp_path: Path, slow: str) -> Run:
    def go(**settings: Any) -> ug.Result:
        return ug.run(**{"data": Own(), "model": linear, "rounds": 4, "fleet": slow, "out": str(tmp_path), **settings})

    return go


def trace(folder: Path, windows: str) -> str:
    """`windows`: "0:0-5 1:3-": device 0 is on from 0 to 5, device 1 from 3 for good."""
    rows = ["device,on,off"]
    for window in windows.split():
        number, _, times = window.partition(":")
        rows.append(",".join((DEVICES[int(number)], *times.split("-"))))
    path = folder / "trace.csv"
    path.write_text("\n".join(rows), encoding="utf-8")
    return f"trace:{path}"


def outcomes(result: ug.Result) -> list[tuple[int, str, str, str]]:
    return [(row.round, row.child, row.outcome, row.reason) for row in result.ledger.rows()]


ALL_METHODS = [
    ("fedavg", {}), ("fedprox", {}), ("fedasync", {"concurrency": 2}), ("fedbuff", {"buffer": 2, "concurrency": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "options"), ALL_METHODS)
@pytest.mark.parametrize("topology", ["star", "tree:2x2"])
def test_when_everybody_drops_out_every_round_is_abandoned_and_the_model_stays(run, method, options, topology):
    result = run(method=method, options=options, dropout=1.0, topology=topology)
    assert [row["round"] for row in result.history] == [1, 2, 3, 4]
    assert [row["arrived"] for row in result.history] == [0] * 4
    assert sum("abandoned" in note for note in result.notes) == 4
    rows = [row for row in result.ledger.rows() if row.child in DEVICES]
    assert rows and all(row.outcome == "lost" and row.reason == "dropout" and row.flops == 0 for row in rows)
    untrained = run(lr=1e-30, rounds=1)
    assert result.loss == pytest.approx(untrained.loss, rel=1e-6)


def test_dropouts_and_failures_are_the_same_on_repeat_and_others_with_another_seed(run):
    one, two = (run(rounds=8, dropout=0.2, failure=0.3) for _ in range(2))
    assert facts(one) == facts(two)
    other = run(rounds=8, dropout=0.2, failure=0.3, seed=1)
    lost = {outcome[:2] for outcome in outcomes(one) if outcome[2] == "lost"}
    assert lost != {outcome[:2] for outcome in outcomes(other) if outcome[2] == "lost"}
    assert {row[3] for row in outcomes(one)} == {"", "dropout", "failure"}


def test_who_fails_in_the_middle_has_cost_what_it_did_until_then(run):
    whole = {row.child: row for row in run(rounds=1).ledger.rows()}
    failed = [row for row in run(rounds=6, failure=0.5).ledger.rows() if row.outcome == "lost"]
    assert len(failed) > 3
    for row in failed:
        full = whole[row.child]
        assert row.end - row.start < full.end - full.start
        assert row.flops <= full.flops and row.joules < full.joules and row.bytes_up == 0


def test_who_goes_offline_in_its_work_is_lost_and_its_time_is_cut(run, tmp_path):
    result = run(availability=trace(tmp_path, "0:0- 1:0- 2:0-1.5 3:0-1"), rounds=2)
    lost = [row for row in result.ledger.rows() if row.outcome == "lost"]
    assert [(row.round, row.child, row.reason, row.end) for row in lost] == [
        (1, "phone-3", "it went offline", pytest.approx(1.0)), (1, "phone-2", "it went offline", pytest.approx(1.5)),
    ]  # fmt: skip
    assert [row["arrived"] for row in result.history] == [2, 2]  # in the second round nobody asked the other two


@pytest.mark.parametrize(("method", "options"), ALL_METHODS)
def test_while_all_are_away_time_passes_and_no_round_is_burnt(run, tmp_path, method, options):
    windows = trace(tmp_path, "0:100-120 1:100.5-120 2:1000- 3:1000-")
    result = run(method=method, options=options, availability=windows, rounds=40)
    rows = list(result.ledger.rows())
    assert rows[0].start == 100.0
    assert all(row["arrived"] for row in result.history if row["simulated_seconds"] < 110)
    assert not any(120 <= row.start < 1000 for row in rows)
    assert any(row.start == 1000.0 for row in rows)
    assert len(result.history) == 40


@pytest.mark.parametrize(("method", "options"), ALL_METHODS)
@pytest.mark.parametrize("topology", ["star", "tree:2x2"])
def test_when_nobody_comes_back_the_run_ends_and_asks_nobody_in_vain(run, tmp_path, method, options, topology):
    windows = trace(tmp_path, "0:0-5 1:0-5 2:0-5 3:0-5")
    result = run(method=method, options=options, availability=windows, rounds=30, topology=topology)
    assert len(result.history) == 30
    assert result.history[0]["arrived"] > 0 and result.history[-1]["arrived"] == 0
    assert result.ledger.simulated_seconds == pytest.approx(5.0)
    devices = [row for row in result.ledger.rows() if row.child in DEVICES]
    assert max(row.start for row in devices) < 5.0


def test_an_edge_server_whose_devices_are_away_waits_for_its_own_devices(run, tmp_path):
    result = run(availability=trace(tmp_path, "0:50- 1:50- 2:0- 3:0-"), topology="tree:2x2", rounds=2)
    assert [row["arrived"] for row in result.history] == [2, 2]
    starts = {row.child: row.start for row in result.ledger.rows() if row.round == 1}
    assert starts["phone-0"] == starts["phone-1"] == 50.0
    assert starts["phone-2"] == 0.0


def test_a_daily_rhythm_is_kept_and_repeats(run):
    one, two = (run(availability="diurnal:0.3", rounds=6) for _ in range(2))
    assert facts(one) == facts(two)
    assert all(row["arrived"] + row["lost"] <= 4 for row in one.history)


# Batteries ---------------------------------------------------------------------------------------------------


def joules_of_a_round(run: Run) -> float:
    return next(row.joules for row in run(rounds=1).ledger.rows() if row.child == "phone-1")


@pytest.fixture
def empties(run: Run, tmp_path: Path) -> str:
    """A fleet in which the second device has the power for three and a half rounds."""
    usual = {"latency": LATENCY}
    battery = {**usual, "battery": 3.5 * joules_of_a_round(run)}
    return fleet_file(tmp_path, one=usual, two=battery, three=usual, four=usual)


def test_a_battery_lasts_as_many_rounds_as_it_has_power_for_and_the_device_is_lost_once(run, empties):
    result = run(fleet=empties, rounds=8)
    rows = [row for row in result.ledger.rows() if row.child == "phone-1"]
    assert [row.outcome for row in rows] == ["arrived"] * 3 + ["lost"]
    assert rows[-1].reason == "its battery ran out"
    assert rows[-1].joules == pytest.approx(0.5 * rows[0].joules)
    assert [row["arrived"] for row in result.history] == [4, 4, 4] + [3] * 5


def test_when_all_batteries_are_empty_the_run_ends(run, tmp_path):
    battery = 2.5 * joules_of_a_round(run)
    tiny = fleet_file(tmp_path, tiny={"share": 1.0, "latency": LATENCY, "battery": battery})
    result = run(data=Own(sizes=(12,) * 4), fleet=tiny, rounds=7)
    assert [row["arrived"] for row in result.history] == [4, 4, 0, 0, 0, 0, 0]
    assert [row.reason for row in result.ledger.rows() if row.outcome == "lost"] == ["its battery ran out"] * 4
    assert "devices of which the battery ran out, and which were not asked again: 4 of 4" in result.notes


def test_an_empty_device_keeps_nobody_from_waiting_for_the_others(run, empties, tmp_path):
    windows = trace(tmp_path, "0:0-20 0:500- 1:0-")
    result = run(fleet=empties, availability=windows, rounds=12)
    rows = list(result.ledger.rows())
    assert sum(row.reason == "its battery ran out" for row in rows) == 1
    assert any(row.start == 500.0 for row in rows)
    assert all(row["arrived"] for row in result.history if row["simulated_seconds"] > 500)


def test_a_job_that_never_started_or_was_given_up_draws_only_what_the_ledger_says(run, empties):
    result = run(fleet=empties, rounds=40, dropout=0.5, failure=0.3)
    drawn = sum(row.joules for row in result.ledger.rows() if row.child == "phone-1")
    assert drawn == pytest.approx(3.5 * joules_of_a_round(run))
    assert sum(row.reason == "its battery ran out" for row in result.ledger.rows()) == 1


def test_a_device_that_is_late_draws_what_it_did_until_the_deadline(run, tmp_path):
    usual = {"latency": LATENCY}
    mains = fleet_file(tmp_path, one=usual, two={**usual, "flops": 1e3}, three=usual, four=usual)
    once = next(row for row in run(fleet=mains, deadline=2.5).ledger.rows() if row.outcome == "late")
    assert once.child == "phone-1"
    battery = {**usual, "flops": 1e3, "battery": 3.5 * once.joules}
    weak = fleet_file(tmp_path, one=usual, two=battery, three=usual, four=usual)
    rows = [row for row in run(fleet=weak, deadline=2.5, rounds=6).ledger.rows() if row.child == "phone-1"]
    assert [row.outcome for row in rows] == ["late"] * 3 + ["lost"]


@pytest.mark.parametrize("stopped", [2, 3, 4, 6])
def test_a_battery_is_as_empty_after_a_restart_as_before(empties, stopped, tmp_path):
    tree = {"fleet": {"name": empties, "dropout": 0.1}, "train": {"rounds": 8}}
    objects = {"data": Own(), "model": linear}
    whole = start({**tree, "run": {"out": str(tmp_path / "whole")}}, **objects)
    assert facts(stopped_and_resumed(tree, stopped, str(tmp_path / "stopped"), **objects)) == facts(whole)


def test_drops_depend_on_the_job_alone():
    chances = ug.devices.Failures(dropout=0.3, failure=0.3)
    contexts = [Context(0, f"phone-{number % 50}", number // 50) for number in range(4000)]
    drawn = [chances.draw(context) for context in contexts]
    assert drawn == [chances.draw(context) for context in contexts]
    share = sum(outcome is not None for outcome in drawn) / len(drawn)
    assert share == pytest.approx(0.3 + 0.7 * 0.3, abs=0.03)
