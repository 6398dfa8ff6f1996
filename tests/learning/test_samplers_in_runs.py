"""Selections in whole runs: whom they ask, and that devices send their loss only where somebody wants it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import undergrowth as ug

from ..fleet_files import fleet_file
from ..runs.objects import Own, linear

SELECTIONS = ["uniform", "data", "available", "fedcs", "power-of-choice", "power-of-choice:3", "oort"]
METHODS = [("fedavg", {}), ("fedprox", {}), ("fedasync", {"concurrency": 3}), ("fedbuff", {"buffer": 2})]
Run = Callable[..., ug.Result]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    fleet = fleet_file(tmp_path, **{f"class-{number}": {"latency": 1.0 + number} for number in range(6)})

    def go(**settings: Any) -> ug.Result:
        small = {"data": Own(sizes=(8, 12, 16, 20, 8, 12)), "model": linear, "rounds": 4, "fleet": fleet}
        return ug.run(**{**small, "out": str(tmp_path), **settings})

    return go


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize(("method", "options"), METHODS)
@pytest.mark.parametrize("topology", ["star", "tree:2x3"])
def test_every_selection_goes_with_every_kind_of_method(run, selection, method, options, topology):
    settings = {"method": method, "options": options, "deadline": 9.0, "sample": 0.5, "topology": topology}
    result = run(sampler=selection, **settings)
    assert len(result.history) == 4
    assert all(row["arrived"] for row in result.history)


@pytest.mark.parametrize(("method", "options"), METHODS)
def test_devices_send_their_loss_only_where_the_selection_needs_it(run, method, options):
    uploads = {}
    for selection in SELECTIONS:
        rows = run(method=method, options=options, sampler=selection, deadline=20.0).ledger.rows()
        (uploads[selection],) = {row.bytes_up for row in rows if row.outcome == "arrived"}
    for selection, size in uploads.items():
        assert size - uploads["uniform"] == (8 if selection.startswith(("power", "oort")) else 0)


def test_who_was_heard_with_fedbuff_is_not_asked_before_those_who_were_not(run):
    rows = run(method="fedbuff", options={"buffer": 2, "concurrency": 2}, sampler="power-of-choice:6").ledger.rows()
    asked = [row.child for row in sorted(rows, key=lambda row: row.start)]
    assert len(set(asked[:6])) == 6


def test_fedcs_asks_nobody_who_would_be_late(run):
    rows = list(run(sampler="fedcs", deadline=9.0).ledger.rows())
    assert {row.child for row in rows} == {"phone-0", "phone-1", "phone-2", "phone-3"}
    assert {row.outcome for row in rows} == {"arrived"}
    some = run(sampler="fedcs", deadline=9.0, sample=1 / 3).ledger.rows()
    assert {row.child for row in some} == {"phone-0", "phone-1"}


def test_available_asks_nobody_who_would_leave_in_the_middle(run, tmp_path):
    trace = tmp_path / "trace.csv"
    rows = "".join(f"phone-{number},0,{5 if number < 3 else ''}\n" for number in range(6))
    trace.write_text(f"device,on,off\n{rows}", encoding="utf-8")
    asked = {}
    for selection in ("uniform", "available"):
        result = run(sampler=selection, availability=f"trace:{trace}", rounds=1)
        asked[selection] = {row.child[-1]: row.outcome for row in result.ledger.rows()}
    assert {device for device, outcome in asked["uniform"].items() if outcome == "lost"} == {"2"}
    assert asked["available"] == dict.fromkeys("01345", "arrived")


def test_power_of_choice_asks_everybody_before_it_asks_anybody_twice(run):
    rows = list(run(sampler="power-of-choice:6", sample=1 / 3, rounds=3).ledger.rows())
    assert sorted(row.child[-1] for row in rows) == list("012345")


def test_by_data_asks_large_devices_more_often(run):
    result = run(data=Own(sizes=(2, 2, 2, 2, 2, 90)), sampler="data", sample=1 / 6, rounds=20)
    asked = [row.child for row in result.ledger.rows()]
    assert asked.count("phone-5") > 13
