"""What happens before the first round: pricing starts nothing, and the server's state is made once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import undergrowth as ug
from undergrowth.core import Method
from undergrowth.engines.vector.stacked_loops import StackedLoops
from undergrowth.learning import AveragingServer, GradientClient
from undergrowth.runs import opening
from undergrowth.runs.engine_choice import Choice

CALLS: Counter[str] = Counter()


@dataclass(frozen=True)
class CountingServer(AveragingServer):
    def init(self, *arguments):
        CALLS["init"] += 1
        return super().init(*arguments)

    def plan(self, *arguments):
        CALLS["plan"] += 1
        return super().plan(*arguments)


@dataclass(frozen=True)
class Counted(Method):
    client = GradientClient()
    server = CountingServer()


def test_a_plan_with_worker_processes_forks_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forks, fork = [], os.fork

    def count() -> int:
        forks.append(os.getpid())
        return fork()

    monkeypatch.setattr(os, "fork", count)
    assert ug.plan("fedavg", model="logistic", clients=4, engine="processes", workers=2)
    assert forks == []
    ug.run("fedavg", model="logistic", clients=4, rounds=1, engine="processes", workers=2, out=str(tmp_path))
    assert forks, "a run does fork, so the assertion above can fail"


@pytest.mark.parametrize("engine", ["serial", "auto"])
def test_the_state_is_made_once_and_one_plan_is_priced(engine: str, tmp_path: Path) -> None:
    CALLS.clear()
    ug.run(Counted(), model="logistic", clients=4, rounds=1, engine=engine, out=str(tmp_path))
    assert CALLS == {"init": 1, "plan": 2}, "one plan for the price, one for the round"


@pytest.mark.parametrize("chosen", ["vector", "serial"])
def test_servers_train_on_the_engine_that_auto_chose(
    chosen: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, call = [], StackedLoops.__call__

    def count(self, task, loops):
        found.append(len(loops))
        return call(self, task, loops)

    def run(engine: str) -> Mapping[str, Tensor]:
        result = ug.run("fedat", clients=3, public=0.02, rounds=1, epochs=1, engine=engine, out=str(tmp_path))
        return result.model.state_dict()

    monkeypatch.setattr(opening, "choose_engine", lambda facts: Choice({"engine": chosen}, "the test wants it"))
    monkeypatch.setattr(StackedLoops, "__call__", count)
    by_auto = run("auto")
    assert bool(found) == (chosen == "vector")
    by_name = run(chosen)
    assert by_auto.keys() == by_name.keys()
    assert all(torch.equal(by_auto[name], value) for name, value in by_name.items())
