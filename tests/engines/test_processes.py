"""The engine `processes` gives what the serial engine gives, the same bits every time, and leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace
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
    "fedavg": {},
    "fedprox": {"method": "fedprox"},
    "fedadam": {"method": "fedadam"},
    "fedavgm": {"method": "fedavgm"},
    "own states": {"method": "local"},
    "fedbuff": {"method": "fedbuff", "options": {"buffer": 3, "concurrency": 5}, "fleet": "mixed-edge"},
    "fedasync": {"method": "fedasync", "fleet": "mixed-edge"},
    "tree": {"topology": "tree:2x2", "clients": 4},
    "int8": {"links": {"up": "int8", "down": "fp16"}, "sample": 0.6},
    "a deadline": {"fleet": "mixed-edge", "deadline": 0.02},
    "partial work": {
        "method": "fedprox",
        "model": "cnn",
        "fleet": "mixed-edge",
        "deadline": 0.3,
        "epochs": 20,
        "rounds": 2,
    },
    "a sample": {"sample": 0.3, "placement": "rr"},
    "largest first in turn": {"placement": "srr"},
    "learned": {"placement": "lpt"},
    "buffers": {"model": "resnet-8", "model_options": {"norm": "batch"}, "rounds": 1, "clients": 4, "batch": 128},
}


def run(tmp_path: Any, engine: str, **settings: Any) -> ug.Result:
    small = {
        "model": "logistic",
        "clients": 9,
        "rounds": 3,
        "partition": "dirichlet:0.5",
        "out": str(tmp_path / engine),
    }
    if not isinstance(settings.get("data", ""), str):
        del small["clients"], small["partition"]
    return ug.run(**{**small, "engine": engine, "workers": 2, **settings})


def assert_equal(ours: ug.Result, serial: ug.Result, tolerance: float = 1e-5) -> None:
    weights, reference = ours.model.state_dict(), serial.model.state_dict()
    assert weights.keys() == reference.keys()
    for name in reference:
        torch.testing.assert_close(weights[name], reference[name], rtol=tolerance, atol=tolerance)
    for row, other in zip(ours.history, serial.history, strict=True):
        for name in other.keys() - FACTS - {"loss", "accuracy"}:
            assert row[name] == other[name], name
        assert row["loss"] == pytest.approx(other["loss"], rel=max(tolerance, 1e-4))
    # Only the scalars of a total may differ in their last bits; what was asked, sent and refused may not.
    assert list(ours.ledger.rows()) == list(serial.ledger.rows())
    assert [row["rounds"] for row in ours.clients] == [row["rounds"] for row in serial.clients]
    assert ours.notes == serial.notes


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES.keys())
def test_it_gives_what_the_serial_engine_gives(settings, tmp_path):
    # A bit of rounding may carry a value over a quantiser's step, and grows over many steps.
    tolerance = 1e-3 if "links" in settings or "epochs" in settings else 1e-5
    ours = run(tmp_path, "processes", **settings)
    assert_equal(ours, run(tmp_path, "serial", **settings), tolerance)
    assert ours.history[-1]["workers"] == 2
    assert ours.history[-1]["workers_timedelta"] >= 0
    assert ours.history[-1]["placement_excess"] > -1e-9


@pytest.mark.parametrize("settings", [*CASES.values(), {"links": {"up": "topk:0.1"}, "sample": 0.6}])
def test_one_worker_that_keeps_the_order_gives_the_same_bits_as_the_serial_engine(settings, tmp_path):
    settings = {**settings, "workers": 1, "placement": "rr", "rounds": min(2, settings.get("rounds", 2))}
    assert digest(run(tmp_path, "processes", **settings)) == digest(run(tmp_path, "serial", **settings))


SAME_BITS = ["fedavg", "own states", "fedbuff", "tree", "int8"]


@pytest.mark.parametrize("name", SAME_BITS)
def test_it_gives_the_same_bits_every_time(name, tmp_path):
    first, second = (run(tmp_path / str(number), "processes", **CASES[name]) for number in range(2))
    assert digest(first) == digest(second)


@pytest.mark.parametrize("method", ["fedavgm", "local", "fedbuff"])
def test_a_stopped_run_goes_on_bit_for_bit(method, tmp_path):
    tree = {
        "method": {"name": method},
        "data": {"clients": 6, "partition": "iid"},
        "model": "logistic",
        "train": {"rounds": 4, "sample": 0.5},
        "links": {"up": "int8"},
        "run": {"engine": "processes", "workers": 2},
    }
    resumed = stopped_and_resumed(tree, 2, str(tmp_path / "stopped"))
    whole = start({**tree, "run": {**tree["run"], "out": str(tmp_path / "whole")}})
    assert digest(resumed) == digest(whole)
    assert list(resumed.ledger.rows()) == list(whole.ledger.rows())


def test_a_population_that_no_pickle_can_hold(tmp_path):
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
