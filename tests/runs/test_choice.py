"""The engine `auto`: what it takes and why, where it times, and that a resumed run keeps to it."""

from __future__ import annotations

import os
from typing import Any

import pytest

import undergrowth as ug
from undergrowth.core import InputError
from undergrowth.engines import Serial
from undergrowth.runs import choice
from undergrowth.runs.config import experiment
from undergrowth.runs.federation import federate
from undergrowth.runs.store import Store

from ..stopping import stopped_and_resumed
from .objects import digest

TREE: dict[str, Any] = {"model": "logistic", "data": {"clients": 6}, "train": {"rounds": 4}}


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
        return choice.choose(federate(experiment(TREE)))

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
        (0.01, [("Serial", 1, 1), ("Serial", 4, 5), ("Vector", 4, 5)]),
        (1e-5, [("Serial", 1, 1), ("Serial", 32, 5000), ("Vector", 32, 5000)]),
    ],
    ids=["long", "short"],
)
def test_of_long_clients_few_are_tried_and_only_their_first_steps(monkeypatch, step, expected):
    tried: list[tuple[str, int, int]] = []

    def seconds(engine: Any, federation: Any, jobs: Any) -> float:
        tried.append((type(engine).__name__, len(jobs), jobs[0].limit))
        return step * min(12, jobs[0].limit)

    monkeypatch.setattr(choice, "_seconds", seconds)
    data = {"clients": 40, "train_samples": 480, "partition": "iid", "holdout": 0}
    federation = federate(experiment({**TREE, "data": data, "train": {"batch": 1}}))
    assert choice._timed(federation, choice.typical(federation, 32)) == pytest.approx((12 * step, 12 * step))
    assert tried == expected


def test_what_disturbs_one_turn_does_not_count(monkeypatch):
    clock = iter([0.0, 0.04, 0.04, 0.14, 0.14, 0.15, 0.15, 0.19, 0.19, 0.23])
    federation = federate(experiment(TREE))
    monkeypatch.setattr(choice, "process_time", lambda: next(clock))
    assert choice._seconds(Serial(), federation, choice.typical(federation, 2)) == pytest.approx(0.005)


def test_it_times_in_another_process(monkeypatch):
    """Whoever has trained on a machine with a GPU cannot fork workers that train."""
    seen: list[int] = []
    monkeypatch.setattr(choice, "_timed", lambda *_: (seen.append(os.getpid()), (1.0, 1.0))[1])
    choice.choose(federate(experiment(TREE)))
    assert seen == [], "only the fork has called it"


def test_a_real_timing_gives_a_run_that_tells_and_keeps_its_engine(tmp_path):
    tree = {**TREE, "run": {"engine": "auto", "workers": 2}}
    whole = ug.run(model="logistic", clients=6, rounds=4, engine="auto", workers=2, out=str(tmp_path / "whole"))
    (note,) = whole.notes
    assert note.startswith("engine auto: took ") and "ms alone and" in note
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
