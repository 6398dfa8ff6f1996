"""What `auto` counts, and what a run makes of it: its note, its settings, its digest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import undergrowth as ug
from undergrowth.core import InputError, RunError, Shard
from undergrowth.engines import VectorEngine
from undergrowth.learning import GradientClient
from undergrowth.runs import engine_facts
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.engine_choice import choose_engine
from undergrowth.runs.engine_facts import count_facts, typical_jobs
from undergrowth.runs.federation import Federation
from undergrowth.runs.federation_builder import federate
from undergrowth.runs.store import Store

from ..stopping import stopped_and_resumed
from .objects import digest

RAW: dict[str, Any] = {"model": "logistic", "data": {"clients": 6}, "train": {"rounds": 4}}


def federation(**changes: Any) -> Federation:
    return federate(parse_experiment({**RAW, **changes}))


def test_facts_of_a_logistic_model() -> None:
    built = federation(data={"clients": 6, "partition": "iid"})
    facts = count_facts(built)
    sizes = sorted(built.population.size(device) for device in built.population.devices)
    assert (facts.clients, facts.rounds, facts.weights, facts.inputs) == (6, 4, 650, 32 * 64)
    assert facts.steps == -(-sizes[3] // 32)
    assert facts.calls % facts.steps == 0 and 10 < facts.calls / facts.steps < 40
    assert facts.flops == sizes[3] * 4 * 640
    assert facts.forks and not facts.gpu and not facts.convolves
    assert not facts.stacks  # not tried for a brief run
    assert count_facts(federation(train={"rounds": 4000})).stacks
    assert count_facts(federation(model="cnn")).convolves


def test_clients_of_a_round() -> None:
    assert count_facts(federation(train={"rounds": 4, "sample": 0.5})).clients == 3
    assert count_facts(federation(method="fedasync")).clients == 1
    assert count_facts(federation(method={"name": "fedbuff", "buffer": 3})).clients == 3


def test_beside_a_gpu_no_worker_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    found = federation()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not count_facts(found).forks


class Tokens:
    """Two devices with texts."""

    name, devices, classes, shape = "tokens", ("device-0", "device-1"), 5, (6,)

    def size(self, device: str) -> int:
        return 8

    def train(self, device: str) -> Shard:
        return Shard(torch.arange(48).reshape(8, 6) % 7, torch.arange(8) % 5)

    def test(self, device: str) -> Shard:
        return Shard(torch.zeros(0, 6, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))

    def central_test(self) -> Shard:
        return self.train("")


class Multiplied(nn.Module):
    """A layer that the vector engine does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.ones(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bi,io->bo", x.flatten(1), self.matrix)


@pytest.mark.parametrize(
    ("changes", "objects", "stacks"),
    [
        ({"model": "cnn"}, {}, True),
        ({"model": "wrn-16-1"}, {}, True),
        ({"model": "mlp", "method": "fedfsc"}, {}, True),
        ({"model": "mlp", "method": "moon"}, {}, True),
        ({"model": "mlp", "method": "fedkad", "public": 0.1}, {}, True),
        ({"model": {"name": "lstm", "hidden": 8, "vocabulary": 7}, "data": {}}, {"data": Tokens()}, True),
        ({}, {"model": Multiplied}, False),
    ],
    ids=["cnn", "batch normalisation", "two updates", "own state", "public data", "lstm", "unknown layer"],
)
def test_whether_clients_stack_is_counted_as_the_vector_engine_finds(
    changes: dict[str, Any], objects: dict[str, Any], stacks: bool
) -> None:
    built = federate(parse_experiment({**RAW, **changes}), **objects)
    assert engine_facts.can_stack(built, typical_jobs(built, 1)[0].down) == stacks
    engine = VectorEngine()
    engine.open(built.world)
    list(engine.run(typical_jobs(built, 2)))
    assert engine.facts()["stacked"] == (2 if stacks else 0)


class LocalClient:
    """A client without steps."""

    def local(self, task: Any, down: Any, shard: Any, own: Any, context: Any) -> Any:
        return GradientClient().local(task, down, shard, own, context)


def test_a_client_without_steps_does_not_stack() -> None:
    built = federation()
    built.world.client = LocalClient()
    assert not engine_facts.can_stack(built, typical_jobs(built, 1)[0].down)


def test_the_run_notes_its_engine_and_a_resumed_run_keeps_it(tmp_path: Path) -> None:
    whole = ug.run(model="logistic", clients=6, rounds=4, engine="auto", out=str(tmp_path / "whole"))
    (note,) = whole.notes
    assert note.startswith("engine auto: serial, because there is little to compute: 6 devices a round for 4 rounds")
    out = str(tmp_path / "stopped")
    resumed = stopped_and_resumed({**RAW, "run": {"engine": "auto"}}, 2, out)
    store = Store(out)
    row = store.run(store.find("last"))
    store.close()
    assert row["experiment"]["settings"]["run"]["engine"] == "serial"
    assert len(resumed.history) == 4 and digest(resumed) == digest(whole)


def test_a_long_run_of_small_clients_is_not_serial() -> None:
    assert choose_engine(count_facts(federation(train={"rounds": 400}))).settings == {"engine": "vector"}


def test_a_client_that_fails_is_reported_by_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    good = GradientClient.step

    def step(self: GradientClient, task: Any, carry: Any, batch: Any) -> Any:
        if batch["x"].is_meta:  # when it is priced
            return good(self, task, carry, batch)
        raise ZeroDivisionError("bad luck")

    monkeypatch.setattr(GradientClient, "step", step)
    with pytest.raises(RunError, match=r"failed in round 1.*bad luck"):
        ug.run(clients=6, rounds=4, model="logistic", engine="auto", out=str(tmp_path))


def test_wrong_input_is_reported_as_with_any_engine(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="split 'mid' is not a level"):
        ug.run(method="fedft", options={"split": "mid"}, model="logistic", engine="auto", out=str(tmp_path))


RARELY = ["-s", "run.evaluate_every=80", "-s", "run.checkpoint_every=80"]


@pytest.mark.parametrize(
    ("words", "processes"),
    [(["--rounds", "80", *RARELY], 2), pytest.param(["--rounds", "150"], 5, marks=pytest.mark.slow)],
    ids=["80 rounds", "150 rounds"],
)
def test_the_same_command_gives_one_digest_in_fresh_processes(tmp_path: Path, words: list[str], processes: int) -> None:
    """Each process has an empty home and cache folder. Timed, these runs are at the border between two engines."""

    def run(number: int) -> dict[str, Any]:
        home = tmp_path / str(number)
        home.mkdir()
        environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
        command = [sys.executable, "-m", "undergrowth", "run", "--model", "logistic", "--clients", "4"]
        command += [*words, "-s", f"run.out={home / 'runs'}", "--json"]
        done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=True)
        assert not (home / "cache").exists() and not (home / ".cache").exists()
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(run, range(processes)))
    assert {result["engine"] for result in results} == {"vector"}
    assert len({result["model_digest"] for result in results}) == 1
