"""How long a table takes, and how many of its runs are executed at a time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from undergrowth.reproduce import Reproduction, Table, parallel_runs, reproduction
from undergrowth.reproduce.estimate import Estimate, Speeds, Work, count_work, stored_speeds
from undergrowth.runs import Store
from undergrowth.runs.execution import start

GIB = 1 << 30


def work(flops: float = 100.0, method: str = "fedavg", memory: int = GIB) -> Work:
    return Work(method, flops, memory, clients=10, data=0)


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "fedavg", "train": {"rounds": 3, "epochs": 2, "sample": 0.5}},
        {"method": {"name": "fedavg", "f_n": 0.5}, "train": {"rounds": 2}},
        {"method": "central", "train": {"rounds": 2}},
        {"method": {"name": "hierfavg", "rounds_per_level": 3}, "topology": "tree:2x2", "train": {"rounds": 2}},
        {"method": "hierfavg", "topology": "tree:2x2", "stop": {"simulated_seconds": 0.1}, "train": {"rounds": 99}},
    ],
)
def test_counted_work_is_that_of_the_ledger(tmp_path: Path, changes: dict) -> None:
    data = {"name": "digits", "clients": 4, "holdout": 0, "partition": "iid", "train_samples": 400}
    raw = {"model": "logistic", "data": data, "run": {"out": str(tmp_path)}, **changes}
    counted, result = count_work(raw), start(raw)
    assert (
        counted.flops == pytest.approx(result.summary["flops"], rel=1e-6) and counted.method == result.summary["method"]
    )
    assert counted.data == 400 * 64 * 4 and counted.memory > 0
    speeds = stored_speeds(Store(tmp_path), "cpu")
    per_flop = result.summary["wall_seconds"] / result.summary["flops"]
    assert speeds.seconds_per_flop(counted.method) == pytest.approx(per_flop) and not speeds.assumed
    assert stored_speeds(Store(tmp_path), "cuda").assumed


def test_an_estimate_is_corrected_as_runs_advance() -> None:
    now = [0.0]
    jobs = {"a": work(100.0), "b": work(100.0), "c": work(400.0, "moon")}
    estimate = Estimate(jobs, Speeds("cpu"), 2, lambda: now[0])
    assert estimate.assumed and estimate.flops == 600.0
    estimate.report("a", 0.0)
    now[0] = 10.0
    estimate.report("a", 0.5)  # 50 FLOPs in 10 seconds
    estimate.report("finished before", 1.0)
    # 150 FLOPs of fedavg are left, and a run of 400 of a method that was never timed, which only one process can do.
    assert not estimate.assumed and estimate.seconds_left == pytest.approx(400 * 0.2)
    now[0] = 20.0
    estimate.report("c", 0.25)  # resumed: its speed is not known before the next report
    now[0] = 60.0
    estimate.report("c", 0.5)  # 100 FLOPs in 40 seconds
    assert estimate.seconds_left == pytest.approx(200 * 0.4)
    now[0] = 100.0
    estimate.report("c", 1.0)
    assert estimate.seconds_left == pytest.approx(100 * 0.2)  # the whole run b; with half of a, 15 seconds for two


def test_runs_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(parallel_runs, "cores", lambda: 16)
    assert parallel_runs.choose_parallel("cpu", 100) == 16 and parallel_runs.choose_parallel("cpu", 3) == 3
    assert parallel_runs.choose_parallel("cpu", 0) == 1
    free = SimpleNamespace(mem_get_info=lambda device: (100 * GIB, 140 * GIB))
    monkeypatch.setattr(parallel_runs.torch, "cuda", free)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    # One run: 1.5 GiB for CUDA, and 10 clients of 1 GiB each, twice because the step is recorded.
    assert parallel_runs.gpu_bytes(work()) == 21.5 * GIB
    assert parallel_runs.choose_parallel("cuda", 100, [work()]) == 2
    (tmp_path / "control").touch()  # MPS is started
    assert parallel_runs.choose_parallel("cuda", 100, [work(), work(memory=1)]) == 4
    assert parallel_runs.choose_parallel("cuda", 100, [work(memory=1)]) == 16
    assert parallel_runs.choose_parallel("cuda", 100, [work(memory=200 * GIB)]) == 1


def test_the_workload_of_a_table(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    workload = Reproduction(["9.1"], seeds=2, jobs="auto").estimate()
    # Two methods, with and without pretraining, and the pretraining itself, each with two seeds.
    assert len(workload.jobs) == 10 and workload.parallel >= 1 and not Store("runs").runs()
    assert workload.estimate is not None and set(workload.estimate.work) == {job.key for job in workload.jobs}
    assert workload.estimate.seconds_left > 0


@pytest.mark.parametrize("engine", [None, "vector", "auto"])
def test_runs_that_share_a_gpu_have_stacks_of_one_size(
    table: Table, engine: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproduction, "check_torch_device", lambda name: name)
    jobs = Reproduction(["9.1"], device="cuda", engine=engine, jobs=2).estimate().jobs
    assert {job.experiment.run.chunk for job in jobs} == {parallel_runs.STACK}
