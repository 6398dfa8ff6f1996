"""The engine `processes` gives what the serial engine gives, the same bits every time, and leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import undergrowth as ug
from undergrowth.core import Packet
from undergrowth.runs.execution import start

from ..runs.objects import Faulty, Own, WithFault, digest, linear
from ..stopping import stopped_and_resumed

FACTS = {"workers_timedelta", "placement_excess", "workers", "wall_seconds"}
CASES: dict[str, dict[str, Any]] = {
    "own states": {"method": "local"},
    "asynchronous": {"method": "fedbuff", "options": {"buffer": 3, "concurrency": 5}, "fleet": "mixed-edge"},
    "tree": {"topology": "tree:2x2", "clients": 4},
    "links": {"links": {"up": "topk:0.1", "down": "fp16"}, "sample": 0.6},
    "partial work": {"method": "fedprox", "fleet": "mixed-edge", "deadline": 0.02, "epochs": 5},
    "sorted round robin": {"placement": "srr"},
    "learned placement": {"placement": "lpt"},
    "buffers": {"model": "wrn-10-1", "rounds": 1, "clients": 4, "batch": 128},
}


def run(tmp_path: Any, engine: str, **settings: Any) -> ug.Result:
    small = {
        "model": "logistic",
        "clients": 9,
        "rounds": 2,
        "data_options": {"train_samples": 300},
        "partition": "dirichlet:0.5",
        "out": str(tmp_path / engine),
    }
    if not isinstance(settings.get("data", ""), str):
        del small["clients"], small["partition"], small["data_options"]
    return ug.run(**{**small, "engine": engine, "workers": 2, **settings})


def assert_equal(ours: ug.Result, serial: ug.Result) -> None:
    """Equal but for the order of sums: devices compute the same bits, whatever the CPU."""
    weights, reference = ours.model.state_dict(), serial.model.state_dict()
    assert weights.keys() == reference.keys()
    for name in reference:
        torch.testing.assert_close(weights[name], reference[name], rtol=1e-5, atol=1e-5)
    for row, other in zip(ours.history, serial.history, strict=True):
        for name in other.keys() - FACTS - {"loss", "accuracy"}:
            assert row[name] == other[name], name
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-4)
    # Only the scalars of a partial result may differ in their last bits; the ledger may not.
    assert list(ours.ledger.rows()) == list(serial.ledger.rows())
    assert [row["rounds"] for row in ours.clients] == [row["rounds"] for row in serial.clients]
    assert ours.notes == [note for note in serial.notes if not note.startswith("run.engine serial does not use")]


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """The serial run of a case, which several tests are compared with."""

    @cache
    def go(name: str) -> ug.Result:
        return run(tmp_path_factory.mktemp("serial"), "serial", **CASES[name])

    return go


@pytest.mark.parametrize(
    "name", [name for name in CASES if name != "links"]
)  # with top-k, rounding may decide which values are sent
def test_it_gives_what_the_serial_engine_gives(name, serial, tmp_path):
    ours = run(tmp_path, "processes", **CASES[name])
    assert_equal(ours, serial(name))
    assert ours.history[-1]["workers"] == 2
    assert ours.history[-1]["workers_timedelta"] >= 0
    assert ours.history[-1]["placement_excess"] > -1e-9


@pytest.mark.parametrize("name", CASES)
def test_one_worker_that_keeps_the_order_gives_the_same_bits_as_the_serial_engine(name, serial, tmp_path):
    settings = {**CASES[name], "workers": 1, "placement": "rr"}
    assert digest(run(tmp_path, "processes", **settings)) == digest(serial(name))


def test_it_gives_the_same_bits_every_time_and_after_a_resume(tmp_path):
    raw = {
        "method": {"name": "fedbuff", "buffer": 2, "concurrency": 4},
        "data": {"clients": 6, "partition": "dirichlet:0.5", "train_samples": 300},
        "model": "logistic",
        "fleet": "mixed-edge",
        "train": {"rounds": 4},
        "links": {"up": "int8"},
        "run": {"engine": "processes", "workers": 2},
    }
    resumed = stopped_and_resumed(raw, 2, str(tmp_path / "stopped"))
    whole = start({**raw, "run": {**raw["run"], "out": str(tmp_path / "whole")}})
    assert digest(resumed) == digest(whole)
    assert list(resumed.ledger.rows()) == list(whole.ledger.rows())


def test_a_population_that_cannot_be_pickled(tmp_path):
    def halved(shard: Any) -> Any:
        return replace(shard, x=shard.x / 2)

    data = Own(sizes=(8, 12, 16, 20, 40), changes={"phone-1": halved, "phone-3": lambda shard: shard})
    ours, serial = (run(tmp_path, engine, data=data, model=lambda: linear()) for engine in ("processes", "serial"))
    assert_equal(ours, serial)


def test_a_client_with_bad_numbers_is_refused_alike(tmp_path):
    def spoil(up: Packet) -> Packet:
        return Packet({name: value * float("nan") for name, value in up.tensors.items()}, up.scalars)

    method = WithFault(Faulty(device="phone-2", fault=spoil))
    data = Own(sizes=(8, 12, 16, 20, 40))
    ours, serial = (run(tmp_path, engine, method=method, data=data, model=linear) for engine in ("processes", "serial"))
    assert_equal(ours, serial)
    assert ours.history[0]["refused"] == 1
