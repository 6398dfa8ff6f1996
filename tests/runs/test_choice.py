"""The engine `auto`: what it takes and why, where it times, and that a resumed run keeps to it."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

import pytest

import undergrowth as ug
from undergrowth.core import InputError, RunError
from undergrowth.engines import SerialEngine
from undergrowth.learning import GradientClient
from undergrowth.methods import FedAvg
from undergrowth.runs import choice
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.federation import federate
from undergrowth.runs.store import Store

from ..stopping import stopped_and_resumed
from .objects import digest

TREE: dict[str, Any] = {"model": "logistic", "data": {"clients": 6}, "train": {"rounds": 4}}
LONG = {**TREE, "train": {"rounds": 400}}


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Where timings are remembered in this test, in which runs are as long as they are."""
    monkeypatch.setattr(choice, "BRIEF", 1.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "undergrowth"


@pytest.fixture
def timed(monkeypatch):
    """Says how long a client takes alone and in a stack, in milliseconds, on a machine with some cores."""

    def go(alone: float, stacked: float, cores: int = 2, forks: bool = True) -> tuple[dict[str, Any], str]:
        def here(*_: Any) -> tuple[float, float]:
            if os.getpid() != parent and not forks:
                raise RuntimeError("no training in a fork")
            return alone / 1e3, stacked / 1e3

        monkeypatch.setattr(choice, "_timed", here)
        monkeypatch.setattr(choice, "cores", lambda: cores)
        return choice.choose(federate(parse_experiment(LONG)))

    parent = os.getpid()
    return go


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ((2.0, 1.9), {"engine": "serial"}),
        ((2.0, 1.0), {"engine": "vector"}),
        ((200.0, 190.0), {"engine": "processes", "stack": False}),
        ((200.0, 100.0), {"engine": "processes", "stack": True}),
        ((200.0, 100.0, 1), {"engine": "vector"}),
        ((200.0, 190.0, 2, False), {"engine": "serial"}),
    ],
    ids=["nothing gains", "a stack gains", "long rounds", "both", "one core", "forks cannot train"],
)
def test_what_it_takes(timed, measured, expected):
    settings, told = timed(*measured)
    assert settings == expected
    assert told.startswith(f"took {expected['engine']}") and f"{measured[0]:.3g} ms alone" in told


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0.03, [("SerialEngine", 1, 1)]),
        (0.01, [("SerialEngine", 1, 1), ("SerialEngine", 4, 5), ("VectorEngine", 4, 5)]),
        (1e-5, [("SerialEngine", 1, 1), ("SerialEngine", 32, 5000), ("VectorEngine", 32, 5000)]),
    ],
    ids=["nothing but arithmetic", "long", "short"],
)
def test_of_long_clients_few_are_tried_and_only_their_first_steps(monkeypatch, step, expected):
    tried: list[tuple[str, int, int]] = []

    def seconds(engine: Any, federation: Any, jobs: Any) -> float:
        tried.append((type(engine).__name__, len(jobs), jobs[0].limit))
        return step * min(12, jobs[0].limit)

    monkeypatch.setattr(choice, "_seconds", seconds)
    data = {"clients": 40, "train_samples": 480, "partition": "iid", "holdout": 0}
    federation = federate(parse_experiment({**TREE, "data": data, "train": {"batch": 1}}))
    assert choice._timed(federation, choice.typical(federation, 32), 10**9) == pytest.approx((12 * step, 12 * step))
    assert tried == expected


def test_what_disturbs_one_turn_does_not_count(monkeypatch):
    federation = federate(parse_experiment(TREE))
    for turns, expected in [([9e-3, 4e-2, 1e-1, 1e-2, 4e-2, 1e-3], 5e-4), ([1e-3, 0.3], 0.15), ([2.5], 1.25)]:
        clock = iter([sum(turns[: (at + 1) // 2]) for at in range(2 * len(turns))])
        monkeypatch.setattr(choice, "process_time", partial(next, clock))
        assert choice._seconds(SerialEngine(), federation, choice.typical(federation, 2)) == pytest.approx(expected)
        assert next(clock, None) is None


def test_clients_that_cannot_be_timed_fail_in_the_run(monkeypatch, tmp_path):
    good = GradientClient.step

    def step(self: GradientClient, task: Any, carry: Any, batch: Any) -> Any:
        if batch["x"].is_meta:  # when it is priced
            return good(self, task, carry, batch)
        raise ZeroDivisionError("no luck")

    monkeypatch.setattr(GradientClient, "step", step)
    with pytest.raises(RunError, match=r"failed in round 1.*no luck"):
        ug.run(clients=6, rounds=400, model="logistic", out=str(tmp_path))
    store = Store(str(tmp_path))
    row = store.run(store.find("last"))
    store.close()
    assert row["status"] == "failed" and "engine auto: took serial: its clients could not be timed" in row["notes"]


def test_a_fork_that_waits_for_ever_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(choice, "PATIENCE", 0.2)
    monkeypatch.setattr(choice, "_timed", lambda *_: time.sleep(60))
    began = time.monotonic()
    assert choice.choose(federate(parse_experiment(LONG)))[0] == {"engine": "serial"}
    assert time.monotonic() - began < 30


def test_of_a_brief_run_one_client_is_tried_and_nothing_is_gained(monkeypatch):
    tried: list[str] = []
    monkeypatch.setattr(choice, "_seconds", lambda engine, *_: (tried.append(type(engine).__name__), 1e-4)[1])
    federation = federate(parse_experiment(LONG))
    alone, stacked = choice._timed(federation, choice.typical(federation, 6), 24)
    assert tried == ["SerialEngine"] and alone == stacked and 24 * alone < choice.BRIEF


def test_a_brief_run_is_serial_whatever_a_stack_would_gain(timed):
    assert timed(0.1, 0.01) == ({"engine": "serial"}, "took serial: all clients together take 0.24 seconds")


def test_of_a_very_brief_run_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(choice, "_timed", lambda *_: 1 / 0)
    settings, told = choice.choose(federate(parse_experiment({**TREE, "train": {"rounds": 2}})))
    assert settings == {"engine": "serial"} and told == "took serial: there is little to compute"
    assert choice.choose(federate(parse_experiment(LONG)))[1] == "took serial: its clients could not be timed"


def test_the_same_run_gets_the_same_engine_however_busy_the_machine_is(timed, cache):
    """Another engine would give other last bits."""
    first = timed(200.0, 100.0)
    assert timed(200.0, 400.0) == first
    assert timed(200.0, 400.0, cores=4)[0]["stack"] is False, "another machine, in a way"
    for file in cache.iterdir():
        file.write_text("[1.0")
    assert timed(200.0, 400.0)[0]["stack"] is False, "what cannot be read is measured again"


def test_a_process_that_can_start_no_workers_gets_none_whatever_is_remembered(timed, monkeypatch):
    assert timed(200.0, 190.0)[0]["engine"] == "processes"
    monkeypatch.setattr(choice, "_trained", lambda: 1 / 0)  # as where a process has trained on a machine with a GPU
    assert timed(200.0, 190.0)[0] == {"engine": "serial"}


def test_where_nothing_can_be_remembered_it_is_measured_each_time(timed, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert [timed(200.0, stacked)[0]["stack"] for stacked in (100.0, 400.0)] == [True, False]


def test_an_object_of_the_user_is_the_same_one_the_next_time(timed, cache, monkeypatch):
    class Mine(FedAvg):
        __repr__ = object.__repr__  # with its place in memory

    monkeypatch.setattr(choice, "_timed", lambda *_: (0.2, 0.1))
    kept = [Mine(), Mine()]
    for mine in kept:
        choice.choose(federate(parse_experiment(LONG), mine))
    assert len(list(cache.iterdir())) == 1


def test_it_times_in_another_process(monkeypatch):
    """Whoever has trained on a machine with a GPU cannot fork workers that train."""
    seen: list[int] = []
    monkeypatch.setattr(choice, "_timed", lambda *_: (seen.append(os.getpid()), (1.0, 1.0))[1])
    choice.choose(federate(parse_experiment(LONG)))
    assert seen == [], "only the fork has called it"


def test_a_real_timing_gives_a_run_that_tells_and_keeps_its_engine(tmp_path):
    tree = {**TREE, "run": {"engine": "auto", "workers": 2}}
    whole = ug.run(model="logistic", clients=6, rounds=4, engine="auto", workers=2, out=str(tmp_path / "whole"))
    (note,) = whole.notes
    assert note.startswith("engine auto: took ")
    out = str(tmp_path / "stopped")
    resumed = stopped_and_resumed(tree, 2, out)
    store = Store(out)
    row = store.run(store.find("last"))
    store.close()
    assert row["experiment"]["settings"]["run"]["engine"] != "auto"
    assert len(resumed.history) == 4 and digest(resumed)


def test_what_is_wrong_with_a_job_is_said_as_by_any_engine(tmp_path):
    with pytest.raises(InputError, match="split 'mid' is not a level"):
        ug.run(method="fedft", options={"split": "mid"}, model="logistic", engine="auto", out=str(tmp_path))
