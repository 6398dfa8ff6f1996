"""Several tables in one pool of workers: pages as tables complete, failures, the time limit, and a GPU service that is
not ready."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.reproduce.example_table import example_table
from undergrowth.core import InputError, RunWarning
from undergrowth.reproduce import Reproduction, TableResult, catalogue, reproduce_table
from undergrowth.reproduce.markdown import render_page
from undergrowth.runs import Store
from undergrowth.sweeps import worker, worker_pool
from undergrowth.sweeps.jobs import Job, RunIndex
from undergrowth.sweeps.worker_pool import WorkerPool

NOT_READY = "RuntimeError: CUDA error: MPS server is not ready to accept new MPS client requests"


@pytest.fixture(autouse=True)
def _two_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 9.1, table 9.3 with one row of its own, and table 9.4 whose data is missing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNDERGROWTH_DATA", str(tmp_path / "data"))
    rows = {"FedAvg": {"method": "fedavg"}, "FedSGD": {"method": "fedsgd"}}
    small = {"rows": rows, "published": {"FedAvg": [1, 1], "FedSGD": [1, 1]}, "orderings": [], "cells": []}
    pictures = {"pictures, even": {"data": {"name": "cifar10"}}}
    scales = {name: {"seeds": 1} for name in ("full", "small", "smoke")}
    missing = {"columns": pictures, "published": {"FedAvg": [1], "FedSGD": [1]}, "scales": scales}
    tables = [
        example_table(tables=["9.1"]),
        example_table(**{**small, "tables": ["9.3"]}),
        example_table(**{**small, **missing, "tables": ["9.4"]}),
    ]
    monkeypatch.setattr(catalogue, "load_tables", lambda: {table.name: table for table in tables})


def values(result: TableResult) -> dict[str, Any]:
    return {each.cell.name: each.values for each in result.cells}


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods of all runs that are started in this process."""
    calls: list[str] = []
    start = worker.start
    monkeypatch.setattr(
        worker, "start", lambda raw, **hooks: (calls.append(raw["method"]["name"]), start(raw, **hooks))[1]
    )
    return calls


def test_tables_share_runs_and_are_reported_when_complete(executed: list[str]) -> None:
    completed: list[tuple[str, int]] = []
    results = Reproduction(["9.1", "9.3", "9.4"]).run(
        on_result=lambda each: completed.append((each.table.name, len(executed)))
    )
    # Pretraining, four rows of 9.1, of which one is in 9.3 too, and one row of 9.3.
    assert executed == ["central", "fedavg", "fedprox", "fedavg", "fedprox", "fedsgd"]
    assert completed == [("9.1", 5), ("9.3", 6)] and list(results.tables) == ["9.1", "9.3"]
    assert values(results.tables["9.1"])["FedAvg/digits, even"] == values(results.tables["9.3"])["FedAvg/digits, even"]
    assert "missing data: cifar10" in str(results.failed["9.4"])
    with pytest.raises(InputError, match="missing data: cifar10"):
        Reproduction(["9.4"]).run()


def test_no_run_starts_after_the_time_limit(executed: list[str]) -> None:
    result = reproduce_table("9.3", minutes=1e-9)
    assert executed == [] and result.unfinished == dict.fromkeys(values(result), "1 of 1 seeds")
    page = render_page(result, "", "cpu")
    assert "## Not finished\n\n- FedAvg/digits, even: 1 of 1 seeds" in page
    assert not reproduce_table("9.3").unfinished and executed == ["fedavg", "fedsgd"]
    # Finished runs need no time.
    assert all(values(reproduce_table("9.3", minutes=1e-9)).values())
    with pytest.raises(InputError, match="minutes 0 must be above 0"):
        reproduce_table("9.3", minutes=0)


def stop_runs_after_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the time limit were reached in the first round of every run."""
    run_job = worker_pool.run_job
    monkeypatch.setattr(
        worker_pool, "run_job", lambda request, on_progress: run_job({**request, "until": 0.0}, on_progress)
    )


def test_the_time_limit_stops_runs_after_their_round(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = values(reproduce_table("9.3", only="FedAvg", out=str(tmp_path / "whole")))
    stop_runs_after_a_round(monkeypatch)
    unfinished = reproduce_table("9.3", only="FedAvg", minutes=10).unfinished
    (row,) = Store("runs").runs()
    (first,) = Store("runs").rounds(row["id"])
    reached = f"1 of 1 seeds; seed 0: {100 * first['accuracy']:.2f} after 1 of 2 rounds"
    assert row["status"] == "interrupted" and unfinished == {"FedAvg/digits, even": reached}
    # The last round is not stopped, so that the second sitting ends the run.
    assert values(reproduce_table("9.3", only="FedAvg", minutes=10)) == whole and len(Store("runs").runs()) == 1


def test_a_column_that_is_a_seed_is_named_by_it_and_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {name: {"data": "digits", "run": {"seed": seed}} for seed, name in ((4, "digits, even"), (7, "other"))}
    table = example_table(tables=["9.5"], columns=columns)
    monkeypatch.setattr(catalogue, "load_tables", lambda: {"9.5": table})
    with pytest.raises(InputError, match=r"seeds 2 has no effect on 9\.5: every column is one seed"):
        reproduce_table("9.5", seeds=2)
    stop_runs_after_a_round(monkeypatch)
    (unfinished,) = reproduce_table("9.5", seeds=1, only="FedAvg/*", minutes=10).unfinished.values()
    assert unfinished.startswith("1 of 1 seeds; seed 4: ")


def job(seed: int = 0) -> Job:
    data = {"name": "digits", "clients": 2, "train_samples": 100}
    raw = {"method": "fedavg", "model": "logistic", "data": data, "train": {"rounds": 1}}
    return Job({**raw, "run": {"seed": seed, "out": "runs"}})


class UnreadyWorker(worker_pool.ThisProcess):
    """A worker whose first `failures` attempts fail with `reason`."""

    def __init__(self, failures: int, reason: str) -> None:
        self.failures, self.reason = failures, reason
        self.requests: list[Any] = []
        self.closed = 0

    def run(self, request: Any, on_progress: Any) -> Any:
        self.requests.append(dict(request))
        if len(self.requests) <= self.failures:
            return {"failed": self.reason, "input": False}
        return super().run(request, on_progress)

    def close(self) -> None:
        self.closed += 1


def run_on(worker: UnreadyWorker, monkeypatch: pytest.MonkeyPatch) -> worker_pool.JobResults:
    monkeypatch.setattr(worker_pool, "MPS_PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr(worker_pool, "ThisProcess", lambda: worker)
    return WorkerPool(RunIndex(Store("runs", create=True)), 1, lambda *_: None).run([job()])


@pytest.mark.parametrize(
    "reason",
    [
        NOT_READY,
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 807: x",
        "cudaErrorMpsConnectionFailed",
    ],
)
def test_a_run_is_tried_again_while_mps_is_starting(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    worker = UnreadyWorker(2, reason)
    with pytest.warns(RunWarning, match="NVIDIA's MPS did not accept a run, which is tried again after 0.0 s"):
        results = run_on(worker, monkeypatch)
    assert len(results.runs) == 1 and not results.failed
    assert (
        len(worker.requests) == 3 and worker.closed == 3
    )  # every attempt has a new process; the last close is the end


def test_other_failures_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = UnreadyWorker(1, "RuntimeError: CUDA error: out of memory")
    assert list(run_on(worker, monkeypatch).failed.values()) == ["RuntimeError: CUDA error: out of memory"]
    assert len(worker.requests) == 1


def test_a_run_fails_if_mps_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = UnreadyWorker(9, NOT_READY)
    with pytest.warns(RunWarning):
        assert list(run_on(worker, monkeypatch).failed.values()) == [NOT_READY]
    assert len(worker.requests) == 4


def test_a_run_that_lost_mps_in_the_middle_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(execution: Any) -> None:
        raise KeyboardInterrupt

    class LostWorker(UnreadyWorker):
        def run(self, request: Any, on_progress: Any) -> Any:
            if not self.requests:
                with suppress(KeyboardInterrupt):
                    worker.start(request["raw"], on_start=interrupt)
            return super().run(request, on_progress)

    lost = LostWorker(1, NOT_READY)
    with pytest.warns(RunWarning):
        results = run_on(lost, monkeypatch)
    (row,) = Store("runs").runs()
    assert list(results.runs.values()) == [row["id"]] and lost.requests[-1]["run"] == row["id"]


def test_pretrainings_come_before_the_runs_of_all_tables() -> None:
    early, source, step = job(1), job(2), job(3)
    second = Job(step.raw, start=source)
    late = Job(job(4).raw, start=second)
    ordered = list(worker_pool._in_order([early, late, job(5)]).values())
    assert [each.raw["run"]["seed"] for each in ordered] == [2, 3, 1, 4, 5]
