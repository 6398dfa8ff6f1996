"""The serial engine: uploads that it refuses, states that it stores, and that combining early changes nothing."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import undergrowth as ug
from undergrowth.core import Context, Packet, RunError, Server, add_upload
from undergrowth.engines import ENGINES, Job, SerialEngine, World, restore_torch_settings, set_torch
from undergrowth.engines.memory import COLLECTION_FACTOR
from undergrowth.learning import AveragingServer, GradientClient
from undergrowth.methods import FedAvg
from undergrowth.runs.execution import start

from ..simulation.federations import TASK, NoData, Nudge

MODEL = TASK.model.initial(0)


def world(server: Server | None = None, bad: dict[str, Any] | None = None) -> World:
    return World(TASK, Nudge(bad or {}), {"server": server or AveragingServer()}, NoData())


def jobs(names: list[str], combine: bool, round: int = 0) -> list[Job]:
    return [Job("server", name, Packet(MODEL), Context(1, name, round), combine) for name in names]


def opened(place: World) -> SerialEngine:
    engine = SerialEngine()
    engine.open(place)
    return engine


NAMES = ["device-0", "device-1", "device-2"]


def test_the_table_of_engines_has_it():
    assert ENGINES["serial"] is SerialEngine


def test_every_job_is_in_exactly_one_outcome():
    for combine in (True, False):
        outcomes = list(opened(world()).run(jobs(NAMES, combine)))
        assert sorted(name for outcome in outcomes for name in outcome.sent) == NAMES
        assert len(outcomes) == (1 if combine else 3)
        assert all(outcome.combined is combine for outcome in outcomes)


def test_combined_uploads_are_the_single_ones_combined():
    (together,) = opened(world()).run(jobs(NAMES, True))
    total = None
    for outcome in opened(world()).run(jobs(NAMES, False)):
        (name,) = outcome.sent
        total = add_upload(AveragingServer().reducer, total, name, outcome.up)
    assert together.up.scalars == total.scalars
    assert all(torch.equal(together.up.tensors[name], total.tensors[name]) for name in total.tensors)


@pytest.mark.parametrize("count", [1, 2, 5, 11])
def test_a_gpu_combines_several_uploads_at_once(count, monkeypatch):
    names = [f"device-{number}" for number in range(count)]
    (expected,) = opened(world()).run(jobs(names, True))
    monkeypatch.setattr("undergrowth.engines.combining._on_gpu", lambda _: True)
    monkeypatch.setattr("undergrowth.engines.combining.MAX_PENDING_UPLOADS", 4)
    (found,) = opened(world()).run(jobs(names, True))
    assert found.sent == expected.sent and found.up.scalars == pytest.approx(expected.up.scalars)
    for name, value in expected.up.tensors.items():
        torch.testing.assert_close(found.up.tensors[name], value)


def test_the_bytes_of_an_upload_are_those_before_combining():
    size = 4 * (2 * 2 + 2) + 8
    for combine in (True, False):
        for outcome in opened(world()).run(jobs(NAMES, combine)):
            assert set(outcome.sent.values()) == {size}


def test_uploads_of_different_nodes_are_not_mixed():
    place = world()
    place.servers["edge"] = AveragingServer()
    mixed = [*jobs(["device-0"], True), Job("edge", "device-1", Packet(MODEL), Context(1, "device-1", 0), True)]
    assert {outcome.node: list(outcome.sent) for outcome in opened(place).run(mixed)} == {
        "server": ["device-0"],
        "edge": ["device-1"],
    }


BAD = {
    "nan": lambda up: Packet({k: v * float("nan") for k, v in up.tensors.items()}, up.scalars),
    "wrong shape": lambda up: Packet({k: v[:1] for k, v in up.tensors.items()}, up.scalars),
}


@pytest.mark.parametrize("spoil", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("combine", [True, False])
def test_a_bad_upload_is_refused_and_leaves_bytes_and_no_state(combine, spoil):
    place = world(bad={"device-1": spoil})
    outcomes = list(opened(place).run(jobs(NAMES, combine)))
    refused = {name: problem for outcome in outcomes for name, problem in outcome.refused.items()}
    assert list(refused) == ["device-1"]
    assert refused["device-1"]
    assert [set(outcome.refused_bytes) for outcome in outcomes if outcome.refused] == [{"device-1"}]
    assert sorted(name for outcome in outcomes for name in outcome.sent) == ["device-0", "device-2"]
    assert set(place.states.all()) == {"device-0", "device-2"}


def test_an_upload_that_cannot_be_combined_is_refused_and_leaves_no_state():
    place = world(bad={"device-0": lambda up: Packet(up.tensors)})
    (outcome,) = opened(place).run(jobs(NAMES, True))
    assert outcome.refused == {"device-0": "it lacks 'samples'"}
    assert set(place.states.all()) == {"device-1", "device-2"}


def test_if_every_upload_is_refused_the_outcome_has_none():
    place = world(bad=dict.fromkeys(NAMES, BAD["nan"]))
    (outcome,) = opened(place).run(jobs(NAMES, True))
    assert outcome.up is None
    assert set(outcome.refused) == set(NAMES)


def test_every_device_keeps_its_own_state_from_job_to_job():
    place = world()
    engine = opened(place)
    list(engine.run(jobs(["device-0", "device-1"], True)))
    list(engine.run(jobs(["device-0"], False, round=1)))
    assert place.states.get("device-0") == {"times": 2}
    assert place.states.get("device-1") == {"times": 1}
    assert place.states.get("device-2") == {}


def test_an_upload_does_not_depend_on_earlier_jobs():
    (alone,) = opened(world()).run(jobs(["device-2"], False))
    *_, last = opened(world()).run(jobs(NAMES, False))
    assert all(torch.equal(alone.up.tensors[name], last.up.tensors[name]) for name in MODEL)


def test_a_job_does_not_change_its_download():
    before = {name: value.clone() for name, value in MODEL.items()}
    list(opened(world()).run(jobs(NAMES, True)))
    assert all(torch.equal(MODEL[name], before[name]) for name in before)


@pytest.mark.parametrize("error", [ValueError, ZeroDivisionError, AttributeError, MemoryError])
def test_a_job_that_fails_names_the_device_and_the_round(error):
    def fail(up: Packet) -> Packet:
        raise error("no luck")

    engine = opened(world(bad={"device-1": fail}))
    with pytest.raises(RunError, match=r"device-1 failed in round 3 with 1 samples: no luck"):
        list(engine.run(jobs(NAMES, True, round=2)))


def test_a_run_sets_torch_and_restores_it(tmp_path, monkeypatch):
    cudnn = torch.backends.cudnn

    def seen() -> tuple[object, ...]:
        flags = torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
        return torch.get_num_threads(), *flags

    monkeypatch.setattr(cudnn, "benchmark", True)
    before, inside = seen(), []

    class Looking(GradientClient):
        def begin(self, *arguments):
            inside.append(seen())
            return super().begin(*arguments)

    @dataclass(frozen=True)
    class Method(FedAvg):
        client = Looking()

    ug.run(method=Method(), model="logistic", clients=2, rounds=1, precision="tf32", threads=1, out=str(tmp_path))
    assert inside[-1] == (1, True, True, True, False) and seen() == before != inside[-1]


def test_the_gpu_of_a_run_is_the_current_one_until_it_ends(monkeypatch):
    used = [2]
    for name, answer in {"is_initialized": lambda: True, "current_device": lambda: used[-1]}.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    for name, expected in {"cpu": [2], "cuda": [2], "cuda:1": [2, 1, 2]}.items():
        with restore_torch_settings():
            set_torch(False, 1, name)
        assert used == expected
        used[:] = [2]


def test_garbage_is_collected_less_often_only_during_a_run(tmp_path):
    before, seen = gc.get_threshold(), []
    tree = {"model": "logistic", "train": {"rounds": 1}, "run": {"out": str(tmp_path), "engine": "serial"}}
    start(tree, on_round=lambda row, execution: seen.append(gc.get_threshold()))
    assert seen == [(*before[:2], COLLECTION_FACTOR * before[2])]
    assert gc.get_threshold() == before
