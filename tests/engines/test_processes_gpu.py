"""The engine `processes` finds out by itself how many workers share a GPU, and says so.

Here the device `cpu:0` is taken for a GPU and what is measured is made up; the last tests need a real one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import undergrowth as ug
from undergrowth.core import Context, InputError, Packet, RunError, Shard, State, Task
from undergrowth.engines import ProcessesEngine, EngineSettings, World
from undergrowth.engines.processes import engine as engine_module
from undergrowth.engines.processes import worker as worker_module
from undergrowth.engines.processes.headcount import Profile
from undergrowth.learning import Averaging
from undergrowth.runs.result import MODEL_FILE
from undergrowth.runs.run import start
from undergrowth.runs.store import Store

from ..runs.objects import digest
from ..stopping import stopped_and_resumed
from .test_processes_jobs import NAMES, assert_alike, by_serial, jobs, world

GB = 10**9
THIRD = Profile(1.0, 0.34, GB, 80 * GB)
SENTENCE = "processes: 3 workers on cpu:0: a job keeps it busy 34% of the time, a worker takes 1 of 80 GB"


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """Says what workers measure on `cpu:0`, on a machine with eight cores; returns a page where they note that."""
    page = tmp_path / "measured"
    page.touch()
    monkeypatch.setattr(engine_module, "on_gpu", lambda device: device == "cpu:0")
    monkeypatch.setattr(engine_module, "cores", lambda: 8)

    def go(profile: Profile | None = THIRD) -> Path:
        def measured(device: str, work: Any) -> Profile:
            work()
            work()
            with page.open("a") as lines:
                lines.write(f"{os.getpid()}\n")
            assert profile is not None, "this is measured once only"
            return profile

        monkeypatch.setattr(worker_module, "measured", measured)
        return page

    return go


@pytest.fixture
def opened(request):
    def go(place: World, **settings: Any) -> ProcessesEngine:
        engine = ProcessesEngine(EngineSettings(**settings))
        engine.open(place)
        request.addfinalizer(engine.close)
        return engine

    return go


@pytest.mark.parametrize(
    ("devices", "expected"),
    [(("cpu:0",), {"cpu:0": 3}), (("cpu", "cpu:0"), {"cpu:0": 3, "cpu": 5}), (("cpu",), {"cpu": 8})],
    ids=lambda value: ",".join(value),
)
def test_it_measures_once_and_gives_what_the_serial_engine_gives(gpu, opened, devices, expected):
    page, ours, serial = gpu(), world(), world()
    engine = opened(ours, torch_devices=devices)
    for round in range(2):
        work = jobs(NAMES, round=round)
        assert_alike(list(engine.run(work)), by_serial(serial, work))
    assert Counter(engine.torch_devices) == expected
    assert engine.facts()["workers"] == sum(expected.values())
    assert ours.states.snapshot() == serial.states.snapshot(), "what was tried out leaves no trace"
    assert len(page.read_text().splitlines()) == ("cpu:0" in devices)
    assert not {int(line) for line in page.read_text().splitlines()} & set(engine.pids.values()), "it is gone"


def test_a_number_that_the_user_gives_is_not_measured(gpu, opened):
    gpu(None)
    engine = opened(world(), torch_devices=("cpu", "cpu:0"), workers=3)
    assert engine.choose_workers(jobs(NAMES)) == []
    assert list(engine.run(jobs(NAMES))) and engine.torch_devices == ["cpu", "cpu:0", "cpu"]


def test_one_worker_that_stacks_fills_a_gpu(gpu, opened):
    gpu(None)
    engine = opened(world(), torch_devices=("cpu", "cpu:0"), stack=True)
    assert engine.choose_workers(jobs(NAMES)) == ["processes: 1 worker on cpu:0: it stacks its clients"]
    assert Counter(engine.torch_devices) == {"cpu:0": 1, "cpu": 7}


def test_the_job_of_middle_size_is_tried_out_and_not_for_long(gpu, opened, monkeypatch, tmp_path):
    page, do = tmp_path / "tried", worker_module.do
    gpu()

    def noted(place: World, job: Any, own: State, residual: State) -> Any:
        with page.open("a") as lines:
            lines.write(f"{job.device} {job.limit}\n")
        return do(place, job, own, residual)

    monkeypatch.setattr(worker_module, "do", noted)
    engine = opened(world(), torch_devices=("cpu:0",))
    assert engine.choose_workers(jobs(NAMES)) == [SENTENCE]
    assert page.read_text() == 2 * "device-4 None\n"  # this client is not made of steps, so it cannot stop early

    page.unlink()
    ug.run(model="logistic", clients=3, rounds=1, engine="processes", device="cpu:0", out=str(tmp_path))
    tried, *rounds = [line.split()[1] for line in page.read_text().splitlines()][1:]
    assert tried == "20" and set(rounds) == {"None"}


def test_what_a_client_raises_is_raised(gpu, opened):
    def fail(up: Packet) -> Packet:
        raise ZeroDivisionError("no luck")

    def complain(up: Packet) -> Packet:
        raise InputError("method.mu -1 must be at least 0")

    gpu()
    engine = opened(world(bad={"device-4": fail}), torch_devices=("cpu:0",))
    with pytest.raises(RunError, match=r"device-4 failed in round 1 .*no luck"):
        list(engine.run(jobs(NAMES)))
    with pytest.raises(InputError, match=r"method.mu -1"):
        opened(world(bad={"device-4": complain}), torch_devices=("cpu:0",)).choose_workers(jobs(NAMES))


def test_a_worker_that_dies_while_it_measures_is_told_of(gpu, opened):
    gpu()
    engine = opened(world(bad={"device-4": lambda up: os._exit(1)}), torch_devices=("cpu:0",))
    with pytest.raises(RunError, match=r"^a worker on cpu:0 died when it tried out the job of device-4$"):
        list(engine.run(jobs(NAMES)))
    assert engine.pids == {}


TREE: dict[str, Any] = {
    "data": {"clients": 7, "partition": "dirichlet:0.5"},
    "model": "logistic",
    "train": {"rounds": 4},
    "run": {"engine": "processes", "device": "cpu:0"},
}


def stored(out: str) -> tuple[dict[str, Any], list[str]]:
    store = Store(out)
    row = store.run(store.find("last"))
    store.close()
    return row["experiment"]["settings"]["run"], row["notes"]


@pytest.mark.parametrize("device", ["cpu:0", "cpu,cpu:0"])
def test_the_number_is_told_written_down_and_kept_when_the_run_is_resumed(gpu, monkeypatch, tmp_path, device):
    page, out = gpu(), str(tmp_path / "stopped")
    tree = {**TREE, "run": {**TREE["run"], "device": device}}
    whole = start({**tree, "run": {**tree["run"], "out": str(tmp_path / "whole")}})
    assert whole.notes == [SENTENCE]
    assert whole.history[-1]["workers"] == (8 if "," in device else 3)

    def resume(*arguments: Any, **more: Any) -> Any:
        monkeypatch.setattr(engine_module, "cores", lambda: 5)  # on another machine
        gpu(None)
        return go_on(*arguments, **more)

    go_on = ug.resume
    monkeypatch.setattr(ug, "resume", resume)
    resumed = stopped_and_resumed(tree, 2, out)
    assert digest(resumed) == digest(whole)
    assert [row["workers"] for row in resumed.history] == [row["workers"] for row in whole.history]
    settings, notes = stored(out)
    assert settings["workers"] == whole.history[-1]["workers"] and notes == [SENTENCE]
    assert settings["device"] == ("cpu:0,cpu:0,cpu:0,cpu,cpu,cpu,cpu,cpu" if "," in device else "cpu:0")
    assert len(page.read_text().splitlines()) == 2


def test_a_run_on_the_cpu_says_nothing_of_that(gpu, tmp_path):
    gpu(None)
    result = start({**TREE, "run": {"engine": "processes", "workers": 2, "out": str(tmp_path)}})
    assert result.notes == []


class Telling:
    """Uploads how torch works where it is."""

    def local(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Packet, State]:
        tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        return Packet(down.tensors, {"samples": 1.0, "tf32": sum(tf32), "threads": torch.get_num_threads()}), own


@pytest.mark.parametrize("allowed", [False, True])
def test_workers_take_shorter_numbers_only_if_the_run_says_so(opened, allowed):
    place = replace(world(Averaging()), client=Telling())
    (outcome,) = opened(place, workers=1, tf32=allowed).run(jobs(NAMES[:1]))
    assert outcome.scalars == {NAMES[0]: {"samples": 1.0, "tf32": 2.0 * allowed, "threads": 1.0}}


# On a GPU ------------------------------------------------------------------------------------------------------

PROGRAM = """
import json, sys
import undergrowth as ug
result = ug.run(**json.loads(sys.argv[1]))
print(json.dumps({"folder": str(result.folder), "notes": result.notes, **result.history[-1]}))
"""


def elsewhere(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    """A run in a fresh process: on a machine with a GPU, no process can be forked from one that has trained."""
    # At 0.01 last digits stay last digits; at 0.1 a pooling that takes another pixel changes the loss by 3 %.
    small = {"model": "cnn", "clients": 8, "rounds": 3, "sample": 0.75, "lr": 0.01, "progress": False}
    given = json.dumps({**small, "out": str(tmp_path / settings["engine"]), **settings})
    done = subprocess.run([sys.executable, "-c", PROGRAM, given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "profiler" not in done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "settings",
    [{"device": "cuda:0"}, {"device": "cpu,cuda:0"}, {"device": "cuda:0", "stack": True}],
    ids=["cuda:0", "cpu and cuda:0", "stacked"],
)
def test_on_a_real_gpu_it_settles_on_a_number_and_gives_what_serial_gives_there(tmp_path, settings):
    ours = elsewhere(tmp_path, engine="processes", **settings)
    serial = elsewhere(tmp_path, engine="serial", device="cuda:0")
    print(*ours["notes"], sep="\n")  # `pytest -s` shows what was measured
    assert ours["loss"] == pytest.approx(serial["loss"], rel=1e-3)
    assert ours["accuracy"] == pytest.approx(serial["accuracy"], abs=0.01)
    weights = safetensors.torch.load_file(Path(ours["folder"]) / MODEL_FILE)
    for name, value in safetensors.torch.load_file(Path(serial["folder"]) / MODEL_FILE).items():
        torch.testing.assert_close(weights[name], value, rtol=1e-3, atol=1e-3)
    run, notes = stored(str(tmp_path / "processes"))
    assert run["workers"] == ours["workers"] >= 1 and notes == ours["notes"]
    told = [note for note in notes if note.startswith("processes: ") and " on cuda:0: " in note]
    assert len(told) == 1
    if not settings.get("stack"):
        assert "a job keeps it busy " in told[0] and " of the time, a worker takes " in told[0]
        assert "busy 0%" not in told[0]
