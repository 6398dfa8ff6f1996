"""The price of a round in `plan` equals what the ledger books for it, for every method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import undergrowth as ug
from undergrowth.methods import METHODS
from undergrowth.runs.planning import takes_part

from ..conformance import representatives

# Methods with the same client cost the same: `make test` plans one of them, `make test-all` each.
METHODS_ON_DEVICES = [
    pytest.param(name, marks=[] if name in representatives("client") else pytest.mark.slow)
    for name, kind in METHODS.items()
    if not kind.pooled
]
SETTINGS = {
    "data_options": {"train_samples": 200},
    "model": "cnn",
    "model_options": {"hidden": 32},
    "clients": 8,
    "fleet": "mixed-edge",
    "links": {"up": "int8"},
}


# The first round that is typical of all later ones, if it is not round 1. Most of these methods send or do something
# else in the first round; the others keep a state on the devices, which needs memory and, for moon, a pass over it.
USUAL = {
    "scaffold": 2,
    "bhfl": 2,
    "moon": 2,
    "ditto": 2,
    "apfl": 2,
    "l2gd": 2,
    "reft": 2,
    "fedkd": 2,
    "fedfsc": 2,
    "fedfsc-plus": 2,
    "fscprox": 3,
    "fedmd": 3,
    "fedkad": 2,
    "fedmezo": 2,
    "prunefl": 2,
    "pafl": 2,
    "interleaved": 2,
    "ifca": 2,
}
FIXED = {"options": {"f_n": 0.5, "stragglers": "fixed"}}  # the same devices are stragglers in every round
ALONE = {"public": 0.1, "options": {"pretrain_epochs": 2}}
SMALL_STEPS = {"public": 0.1, "options": {"beta": 1.0, "transfer_lr": 0.01, "metadata_lr": 0.01}}
ONE_SHOT = {"public": 0.1, "options": {"server_batch": 4}}
OPTIONS: dict[str, dict[str, Any]] = {
    "fedfsc-plus": FIXED, "fscprox": FIXED, "fedmd": ALONE, "fedkad": ALONE, "fedat": SMALL_STEPS,
    # How many weights prunefl removes depends on the data: at most `ratio`, which is what a plan prices.
    "reft": ONE_SHOT, "fedkd": ONE_SHOT, "prunefl": {"options": {"ratio": 0.0}},
    "l2gd": {"options": {"p": 0.999}},  # steps are drawn, and a plan prices their mean: with this p, one step
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS_ON_DEVICES)
def test_every_figure_of_a_plan_is_what_the_ledger_books(method: str, tmp_path: Path) -> None:
    settings = {**SETTINGS, **OPTIONS.get(method, {})}
    planned = {row["example"]: row for row in ug.plan(method, **settings)}
    usual = USUAL.get(method, 1)
    rounds = 8 if METHODS[method]().server.asynchronous else usual  # a round of FedAsync is one arrival
    result = ug.run(method, rounds=rounds, out=str(tmp_path), progress=False, **settings)
    arrived = [entry for entry in result.ledger.rows() if entry.outcome == "arrived" and entry.round >= usual]
    booked = [entry for entry in arrived if entry.child in planned]
    assert booked
    for entry in booked:
        row = planned[entry.child]
        assert row["flops"] == entry.flops
        assert row["memory_bytes"] == entry.memory
        assert row["bytes_down"] == entry.bytes_down
        assert row["bytes_up"] == entry.bytes_up
        assert row["seconds"] == pytest.approx(entry.end - entry.start)
        assert row["joules"] == pytest.approx(entry.joules)


def test_who_fits_a_deadline_is_who_comes_back_by_it(tmp_path: Path) -> None:
    seconds = sorted(row["seconds"] for row in ug.plan("fedavg", **SETTINGS))
    deadline = seconds[len(seconds) // 2]
    rows = ug.plan("fedavg", deadline=deadline, **SETTINGS)
    result = ug.run("fedavg", rounds=1, deadline=deadline, out=str(tmp_path), progress=False, **SETTINGS)
    assert result.history[0]["arrived"] == takes_part(rows)["fedavg"]
    assert {row["verdict"] for row in rows} == {"fits", "too slow"}
