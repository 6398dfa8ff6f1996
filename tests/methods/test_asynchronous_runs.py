"""FedBuff and FedAsync in whole runs: against FedAvg, on slow fleets, and across a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import undergrowth as ug
from undergrowth.core import InputError
from undergrowth.runs.execution import start

from ..fleet_files import fleet_file
from ..runs.objects import Own, linear, normed
from ..stopping import facts, stopped_and_resumed

EQUAL = Own(sizes=(12,) * 5)


@pytest.fixture
def out(tmp_path: Path) -> str:
    return str(tmp_path / "runs")


@pytest.mark.parametrize("model", [linear, normed])
def test_on_equal_devices_a_buffer_of_all_is_fedavg(model, out):
    settings = {"data": EQUAL, "model": model, "rounds": 4, "batch": 5, "out": out}
    average = ug.run(method="fedavg", **settings)
    buffered = ug.run(method="fedbuff", options={"buffer": 5, "concurrency": 5}, **settings)
    torch.testing.assert_close(buffered.model.state_dict(), average.model.state_dict())
    # Its upload has one number more, which takes 8 bytes at the fleet's million a second.
    assert [row["simulated_seconds"] for row in buffered.history] == pytest.approx(
        [row["simulated_seconds"] + 8e-6 * row["round"] for row in average.history]
    )


@pytest.mark.parametrize(
    "method", [{"name": "fedbuff", "buffer": 3, "concurrency": 4}, {"name": "fedasync", "concurrency": 4}]
)
def test_a_stopped_run_goes_on_bit_for_bit_and_twice_the_same_way(method, out, tmp_path):
    tree = {
        "method": method,
        "data": {"clients": 8, "partition": "dirichlet:0.5"},
        "model": "logistic",
        "fleet": {"name": "mixed-edge", "dropout": 0.1, "failure": 0.1},
        "train": {"rounds": 10, "sampler": "power-of-choice"},
    }
    one, two = (start({**tree, "run": {"out": str(tmp_path / name)}}) for name in ("one", "two"))
    assert facts(one) == facts(two)
    assert {row.outcome for row in one.ledger.rows()} >= {"arrived", "lost"}
    assert facts(stopped_and_resumed(tree, 5, out)) == facts(one)


@pytest.mark.parametrize(("method", "options"), [("fedbuff", {"buffer": 2, "concurrency": 3}), ("fedasync", {})])
def test_no_more_devices_are_at_work_than_said(method, options, out):
    result = ug.run(
        method=method, options={**options, "concurrency": 3}, clients=9, model="logistic", fleet="mixed-edge",
        rounds=12, out=out,
    )  # fmt: skip
    rows = list(result.ledger.rows())
    moments = sorted({row.start for row in rows})
    at_work = [sum(row.start <= moment < row.end - 1e-12 for row in rows) for moment in moments]
    assert max(at_work) == 3
    assert set(at_work[:-1]) == {3}


def test_with_a_long_tail_of_slow_devices_fedbuff_is_there_sooner_than_fedavg(tmp_path, out):
    slow = fleet_file(tmp_path, fast={"share": 0.8, "flops": 1e8}, slow={"share": 0.2, "flops": 1e6, "up": 2e4})
    settings = {"clients": 20, "partition": "iid", "model": "logistic", "fleet": slow, "out": out}
    average = ug.run(method="fedavg", rounds=8, **settings)
    buffered = ug.run(method="fedbuff", options={"buffer": 5, "concurrency": 20}, rounds=40, **settings)

    def seconds_until(result: ug.Result, accuracy: float) -> float:
        return next(row["simulated_seconds"] for row in result.history if row["accuracy"] >= accuracy)

    assert seconds_until(buffered, 0.6) < seconds_until(average, 0.6) / 2


def test_a_wrong_staleness_is_refused_before_the_run_starts(out):
    with pytest.raises(InputError, match=r"method\.staleness 'stale:1'"):
        ug.run(method="fedbuff", options={"staleness": "stale:1"}, clients=4, model="logistic", out=out)
    assert not Path(out).exists()
