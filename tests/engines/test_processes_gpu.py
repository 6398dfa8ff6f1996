"""The engine `processes` chooses how many workers share a GPU, and reports it.

Here the torch device `cpu:0` stands in for a GPU of 16 GB; the last tests need a real one.
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
from undergrowth.core import Context, Packet, RunError, Shard, State, Task
from undergrowth.engines import ProcessesEngine
from undergrowth.engines.processes import engine as engine_module
from undergrowth.engines.processes import worker as worker_module
from undergrowth.learning import AveragingServer
from undergrowth.runs.execution import start
from undergrowth.runs.store import MODEL_FILE, Store

from ..runs.objects import digest
from ..stopping import stopped_and_resumed
from .test_processes_jobs import NAMES, assert_alike, by_serial, jobs, world

GB = 10**9
NOTE = "processes: 3 workers on cpu:0: a job needs 3 GB"


@pytest.fixture
def gpu(monkeypatch):
    """Takes `cpu:0` for a GPU of 16 GB, on a machine with eight cores and jobs of 3 GB."""
    monkeypatch.setattr(engine_module, "is_gpu", lambda name: name == "cpu:0")
    monkeypatch.setattr(engine_module, "cores", lambda: 8)
    monkeypatch.setattr(worker_module, "gpu_memory", lambda name: 16 * GB)
    monkeypatch.setattr(ProcessesEngine, "_job_bytes", lambda self, job: 3 * GB)


@pytest.mark.parametrize(
    ("names", "expected"),
    [(("cpu:0",), {"cpu:0": 3}), (("cpu", "cpu:0"), {"cpu:0": 3, "cpu": 5}), (("cpu",), {"cpu": 8})],
    ids=lambda value: ",".join(value),
)
def test_it_chooses_once_and_gives_what_the_serial_engine_gives(gpu, opened, names, expected):
    ours, serial = world(), world()
    engine = opened(ours, None, torch_devices=names)
    for round in range(2):
        work = jobs(NAMES, round=round)
        assert_alike(list(engine.run(work)), by_serial(serial, work))
    assert Counter(engine.torch_devices) == expected
    assert engine.facts()["workers"] == sum(expected.values())
    assert ours.states.snapshot() == serial.states.snapshot()


def test_a_number_that_the_user_gives_is_used(gpu, opened):
    engine = opened(world(), torch_devices=("cpu", "cpu:0"), workers=3)
    assert engine.choose_workers(jobs(NAMES)) == []
    assert list(engine.run(jobs(NAMES))) and engine.torch_devices == ["cpu", "cpu:0", "cpu"]


def test_one_worker_that_stacks_fills_a_gpu(gpu, opened):
    engine = opened(world(), None, torch_devices=("cpu", "cpu:0"), stack=True)
    assert engine.choose_workers(jobs(NAMES)) == ["processes: 1 worker on cpu:0: it stacks its jobs"]
    assert Counter(engine.torch_devices) == {"cpu:0": 1, "cpu": 7}


def test_a_worker_that_dies_when_it_starts_is_reported(gpu, opened, monkeypatch):
    monkeypatch.setattr(worker_module, "gpu_memory", lambda name: os._exit(1))
    engine = opened(world(), None, torch_devices=("cpu:0",))
    with pytest.raises(RunError, match=r"^a worker on cpu:0 died when it started$"):
        list(engine.run(jobs(NAMES)))
    assert engine.pids == {}


TREE: dict[str, Any] = {
    "data": {"clients": 7, "partition": "dirichlet:0.5"},
    "model": "logistic",
    "train": {"rounds": 2},
    "run": {"engine": "processes", "device": "cpu:0"},
}


def stored(out: str) -> tuple[dict[str, Any], list[str]]:
    store = Store(out)
    row = store.run(store.find("last"))
    store.close()
    return row["experiment"]["settings"]["run"], row["notes"]


@pytest.mark.parametrize("names", ["cpu:0", "cpu,cpu:0"])
def test_the_number_is_noted_stored_and_kept_when_the_run_is_resumed(gpu, monkeypatch, tmp_path, names):
    out = str(tmp_path / "stopped")
    tree = {**TREE, "run": {**TREE["run"], "device": names}}
    whole = start({**tree, "run": {**tree["run"], "out": str(tmp_path / "whole")}})
    assert whole.notes == [NOTE]
    assert whole.history[-1]["workers"] == (8 if "," in names else 3)
    go_on = ug.resume

    def resume(*arguments: Any, **more: Any) -> Any:
        monkeypatch.setattr(engine_module, "cores", lambda: 5)  # on another machine
        return go_on(*arguments, **more)

    monkeypatch.setattr(ug, "resume", resume)
    resumed = stopped_and_resumed(tree, 1, out)
    assert digest(resumed) == digest(whole)
    assert [row["workers"] for row in resumed.history] == [row["workers"] for row in whole.history]
    settings, notes = stored(out)
    assert settings["workers"] == whole.history[-1]["workers"] and notes == [NOTE]
    assert settings["device"] == ("cpu:0,cpu:0,cpu:0,cpu,cpu,cpu,cpu,cpu" if "," in names else "cpu:0")


def test_a_run_on_the_cpu_has_no_note(gpu, tmp_path):
    result = start({**TREE, "run": {"engine": "processes", "workers": 2, "out": str(tmp_path)}})
    assert result.notes == []


class Telling:
    """Uploads the settings of torch in its process."""

    def local(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Packet, State]:
        tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        return Packet(down.tensors, {"samples": 1.0, "tf32": sum(tf32), "threads": torch.get_num_threads()}), own


@pytest.mark.parametrize("allowed", [False, True])
def test_workers_use_tf32_only_if_the_run_says_so(opened, allowed):
    place = replace(world(AveragingServer()), client=Telling())
    (outcome,) = opened(place, workers=1, tf32=allowed).run(jobs(NAMES[:1]))
    assert outcome.scalars == {NAMES[0]: {"samples": 1.0, "tf32": 2.0 * allowed, "threads": 1.0}}


def test_the_memory_of_a_job_is_counted_without_running_it(opened):
    place, job = replace(world(), client=Telling()), jobs(NAMES)[4]
    model_bytes = sum(value.nbytes for value in job.down.tensors.values())
    assert model_bytes <= opened(place, workers=1)._job_bytes(job) < 100 * model_bytes


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
    return dict(json.loads(done.stdout))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "settings",
    [{"device": "cuda:0"}, {"device": "cpu,cuda:0"}, {"device": "cuda:0", "stack": True}],
    ids=["cuda:0", "cpu and cuda:0", "stacked"],
)
def test_on_a_real_gpu_it_chooses_a_number_and_gives_what_serial_gives_there(tmp_path, settings):
    ours = elsewhere(tmp_path, engine="processes", **settings)
    serial = elsewhere(tmp_path, engine="serial", device="cuda:0")
    print(*ours["notes"], sep="\n")  # `pytest -s` shows the number
    assert ours["loss"] == pytest.approx(serial["loss"], rel=1e-3)
    assert ours["accuracy"] == pytest.approx(serial["accuracy"], abs=0.01)
    weights = safetensors.torch.load_file(Path(ours["folder"]) / MODEL_FILE)
    for name, value in safetensors.torch.load_file(Path(serial["folder"]) / MODEL_FILE).items():
        torch.testing.assert_close(weights[name], value, rtol=1e-3, atol=1e-3)
    run, notes = stored(str(tmp_path / "processes"))
    assert run["workers"] == ours["workers"] >= 1 and notes == ours["notes"]
    assert len([note for note in notes if note.startswith("processes: ") and " on cuda:0: " in note]) == 1
