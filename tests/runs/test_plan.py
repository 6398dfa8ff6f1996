"""What `plan` says of a round is what the ledger then books for it, for every method."""

from __future__ import annotations

from pathlib import Path

import pytest

import undergrowth as ug
from undergrowth.methods import METHODS
from undergrowth.runs.plan import takes_part

METHODS_ON_DEVICES = [name for name, kind in METHODS.items() if not kind.pooled]
SETTINGS = {
    "model": "cnn",
    "model_options": {"hidden": 32},
    "clients": 8,
    "fleet": "mixed-edge",
    "links": {"up": "int8"},
}


@pytest.mark.parametrize("method", METHODS_ON_DEVICES)
def test_every_figure_of_a_plan_is_what_the_ledger_books(method: str, tmp_path: Path) -> None:
    planned = {row["example"]: row for row in ug.plan(method, **SETTINGS)}
    rounds = 8 if METHODS[method]().server.asynchronous else 1  # a round of FedAsync is one arrival
    result = ug.run(method, rounds=rounds, out=str(tmp_path), progress=False, **SETTINGS)
    booked = [entry for entry in result.ledger.rows() if entry.child in planned and entry.outcome == "arrived"]
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
