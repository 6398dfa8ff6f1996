"""Running a table: runs are reused, interrupted ones are resumed, pretraining is shared, failures are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.reproduce.example_table import example_table
from undergrowth.core import InputError, RunError
from undergrowth.data import load
from undergrowth.reproduce import Table, TableResult, reproduce_table
from undergrowth.reproduce import table as table_module
from undergrowth.reproduce.data_paths import parse_data_paths
from undergrowth.reproduce.results import measure
from undergrowth.reproduce.table import pair_sides
from undergrowth.runs import Store
from undergrowth.sweeps import worker, worker_pool


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNDERGROWTH_DATA", str(tmp_path / "data"))


@pytest.fixture(scope="module")
def finished_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("finished")


@pytest.fixture(scope="module")
def finished(finished_folder: Path) -> TableResult:
    """The result of the example table, run without interruption in this process."""
    example = example_table()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "load_tables", lambda: {example.name: example})
        return reproduce_table("9.1", out=str(finished_folder))


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Records every run that is started or resumed in this process."""
    calls: list[tuple[str, Any]] = []
    start, resume = worker.start, worker.resume
    monkeypatch.setattr(worker, "start", lambda raw, **hooks: (calls.append(("start", raw)), start(raw, **hooks))[1])
    monkeypatch.setattr(
        worker, "resume", lambda run, out, **hooks: (calls.append(("resume", run)), resume(run, out, **hooks))[1]
    )
    return calls


def values(result: TableResult) -> dict[str, Any]:
    return {each.cell.name: each.values for each in result.cells}


def test_a_second_call_reuses_all_runs(table: Table, executed: list) -> None:
    first = reproduce_table("9.1", seeds=2, only="FedAvg*")
    # Two cells with two seeds, and one pretraining for both seeds.
    assert len(executed) == 5 and [raw["method"]["name"] for _, raw in executed].count("central") == 1
    assert set(values(first)) == {"FedAvg/digits, even", "FedAvg, pretrained/digits, even"}
    fedavg = first.cells[0]
    rounds = Store("runs").rounds(fedavg.runs[0])
    assert fedavg.values[0] == pytest.approx(100 * max(row["accuracy"] for row in rounds))
    assert fedavg.ours is not None and fedavg.ours.spread == pytest.approx(np.std(fedavg.values, ddof=1))
    assert values(reproduce_table("9.1", seeds=2, only="FedAvg*")) == values(first) and len(executed) == 5
    (ordering,) = [each for each in first.orderings if each.seeds]
    (high, *_), (low, *_) = pair_sides(ordering.pair)
    of_row = {each.cell.row: each.values for each in first.cells}
    assert ordering.seeds == tuple(one > other for one, other in zip(of_row[high], of_row[low], strict=True))
    assert f"{sum(ordering.seeds)} of 2 pairs with the same seed" in f"{ordering}"
    # With one more seed and another engine, only the run of the new seed is missing.
    again = reproduce_table("9.2", seeds=3, engine="vector", only="FedAvg")
    assert len(executed) == 6 and values(again)["FedAvg/digits, even"][:2] == fedavg.values


def test_pretrained_weights_are_those_of_the_pretraining_run(table: Table, executed: list) -> None:
    reproduce_table("9.1", only="FedAvg, pretrained")
    (_, pretraining), (_, raw) = executed
    assert pretraining["method"]["name"] == "central"
    (central,) = [row["id"] for row in Store("runs").runs() if row["method"] == "central"]
    assert raw["model"]["weights"] == str(Path("runs") / central / "model.safetensors") and raw["model"]["skip_head"]


def test_interrupted_runs_are_resumed(table: Table, finished: TableResult, executed: list) -> None:
    def interrupt(job: Any, fraction: float) -> None:
        if job.raw["method"]["name"] == "fedprox" and fraction == 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce_table("9.1", on_progress=interrupt)
    before = {row["id"]: row["status"] for row in Store("runs").runs()}
    assert sorted(before.values()) == ["done", "done", "interrupted"]
    executed.clear()
    assert values(reproduce_table("9.1")) == values(finished)
    resumed = [run for kind, run in executed if kind == "resume"]
    assert [before[run] for run in resumed] == ["interrupted"] and len(executed) == 3


def test_worker_processes_give_the_same_values(table: Table, finished: TableResult) -> None:
    fractions: dict[str, float] = {}
    planned: list[int] = []
    result = reproduce_table(
        "9.1", jobs=2, only="FedAvg*", on_plan=lambda jobs: planned.append(len(jobs)),
        on_progress=lambda job, fraction: fractions.__setitem__(job.key, fraction),
    )  # fmt: skip
    assert not result.failed and values(result).items() <= values(finished).items()
    assert planned == [2] and len(fractions) == 3 and set(fractions.values()) == {1.0}
    assert {row["status"] for row in Store("runs").runs()} == {"done"}


def test_a_worker_process_that_dies_fails_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool.sys, "executable", "false")
    process = worker_pool.WorkerProcess()
    for _ in range(2):
        reply = process.run({"raw": {}, "run": None, "out": "runs"}, lambda fraction: None)
        assert reply == {"failed": "its worker process ended with exit code 1", "input": False}
    process.close()


def test_a_failed_cell_does_not_stop_the_others(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    start = worker.start

    def start_or_fail(raw: Any, **hooks: Any) -> Any:
        if raw["method"]["name"] in ("fedprox", "central"):
            raise RuntimeError("no luck")
        return start(raw, **hooks)

    monkeypatch.setattr(worker, "start", start_or_fail)
    result = reproduce_table("9.1")
    assert list(values(result)["FedAvg/digits, even"]) and not values(result)["FedProx/digits, even"]
    assert result.failed["FedProx/digits, even"] == "RuntimeError: no luck"
    assert result.failed["FedAvg, pretrained/digits, even"] == "its pretraining failed"


def test_missing_data(table: Table, tmp_path: Path) -> None:
    result = reproduce_table("9.1", "full", seeds=1, only="FedAvg")
    assert list(values(result)) == ["FedAvg/digits, even"]
    assert result.left_out == {"FedAvg/pictures, even": "missing data: cifar10"}
    with pytest.raises(InputError, match=r"needs missing data: cifar10 \(give --data-path cifar10=FOLDER"):
        reproduce_table("9.1", "full", only="/pictures*")
    with pytest.raises(InputError, match="--data-path cifar10=nowhere: there is no such folder"):
        reproduce_table("9.1", "full", paths={"cifar10": "nowhere"})
    with pytest.raises(InputError, match="cifar10"):  # a folder without the files
        reproduce_table("9.1", "full", only="/pictures*", seeds=1, paths={"cifar10": str(tmp_path)})


def test_pretraining_uses_the_first_available_data(table: Table, tmp_path: Path, executed: list) -> None:
    random = np.random.default_rng(0)
    np.savez(tmp_path / "drawings.npz", x=random.normal(size=(40, 1, 8, 8)).astype("float32"), y=np.arange(40) % 3)
    reproduce_table("9.1", only="FedAvg, pretrained", paths={"drawings": str(tmp_path / "drawings.npz")})
    assert executed[0][1]["data"] == {"name": "npz", "path": str(tmp_path / "drawings.npz")}


def test_data_path_options() -> None:
    assert parse_data_paths(["drawings=a=b", "mnist=c"], {"drawings"}) == {"drawings": "a=b", "mnist": "c"}
    with pytest.raises(InputError, match="must be NAME=FOLDER"):
        parse_data_paths(["cifar10"], {"cifar10"})
    with pytest.raises(InputError, match="'cifr10' is not known; did you mean 'cifar10'"):
        parse_data_paths(["cifr10=x"], {"cifar10"})


@pytest.mark.parametrize("name", ["seeds", "jobs"])
def test_numbers_must_be_positive(table: Table, name: str) -> None:
    with pytest.raises(InputError, match=f"{name} must be at least 1"):
        reproduce_table("9.1", **{name: 0})


def test_metrics(finished: TableResult, finished_folder: Path) -> None:
    run, store = finished.cells[0].runs[0], Store(finished_folder)
    last = store.rounds(run)[-1]["accuracy"]
    assert measure(store, run, "final") == pytest.approx(100 * last)
    fractions = np.bincount(load("digits").test_y) / len(load("digits").test_y)
    by_class = [measure(store, run, f"class {label}") for label in range(10)]
    assert fractions @ by_class == pytest.approx(100 * last) and len(set(by_class)) > 1
    with pytest.raises(RunError, match="has no 'accuracy/devices' in its rounds"):
        measure(store, run, "accuracy/devices")
