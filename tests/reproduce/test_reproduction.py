"""Running a table: runs are reused, interrupted ones are resumed, pretraining is shared, failures are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.executed_runs import fail_runs
from tests.reproduce.example_table import example_table
from undergrowth.core import InputError, RunError
from undergrowth.data import load
from undergrowth.reproduce import Reproduction, Table, TableResult, catalogue, reproduce_table, table_plan
from undergrowth.reproduce.data_paths import DataPaths, parse_data_paths
from undergrowth.reproduce.jobs import plan_cell
from undergrowth.reproduce.metrics import mean_curve, measure
from undergrowth.reproduce.orderings import EQUAL
from undergrowth.reproduce.table import pair_sides
from undergrowth.reproduce.table_cells import build_cells
from undergrowth.runs import Store
from undergrowth.sweeps import worker, worker_pool
from undergrowth.sweeps.jobs import RunIndex


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
        patch.setattr(catalogue, "load_tables", lambda: {example.name: example})
        return reproduce_table("9.1", out=str(finished_folder))


def values(result: TableResult) -> dict[str, Any]:
    return {each.cell.name: each.values for each in result.cells}


def test_a_second_call_reuses_all_runs(table: Table, executed: list) -> None:
    first = reproduce_table("9.1", seeds=2, only="FedAvg*")
    # Two cells with two seeds, and a pretraining for each seed.
    assert len(executed) == 6
    assert [raw["run"]["seed"] for _, raw in executed if raw["method"]["name"] == "central"] == [0, 1]
    assert set(values(first)) == {"FedAvg/digits, even", "FedAvg, pretrained/digits, even"}
    fedavg = first.cells[0]
    rounds = Store("runs").rounds(fedavg.runs[0])
    assert fedavg.values[0] == pytest.approx(100 * max(row["accuracy"] for row in rounds))
    assert fedavg.ours is not None and fedavg.ours.spread == pytest.approx(np.std(fedavg.values, ddof=1))
    assert values(reproduce_table("9.1", seeds=2, only="FedAvg*")) == values(first) and len(executed) == 6
    (ordering,) = [each for each in first.orderings if each.seeds]
    (high, *_), (low, *_) = pair_sides(ordering.pair)
    of_row = {each.cell.row: each.values for each in first.cells}
    assert ordering.seeds == tuple(one > other for one, other in zip(of_row[high], of_row[low], strict=True))
    assert ordering.verdict == EQUAL or f"{sum(ordering.seeds)} of 2 seeds" in f"{ordering}"
    # With one more seed and another engine, only the run of the new seed is missing.
    again = reproduce_table("9.2", seeds=3, engine="vector", only="FedAvg")
    assert len(executed) == 7 and values(again)["FedAvg/digits, even"][:2] == fedavg.values


def test_pretrained_weights_are_those_of_the_pretraining_run(table: Table, executed: list) -> None:
    reproduce_table("9.1", only="FedAvg, pretrained")
    (_, pretraining), (_, raw) = executed
    assert pretraining["method"]["name"] == "central"
    (central,) = [row["id"] for row in Store("runs").runs() if row["method"] == "central"]
    assert raw["model"]["weights"] == str(Path("runs") / central / "model.safetensors") and raw["model"]["skip_head"]


def test_all_rows_share_a_pretraining_of_two_steps(monkeypatch: pytest.MonkeyPatch, executed: list) -> None:
    """The second step keeps the classifier of the first only if it says so; the runs keep that of the second."""
    first = {"method": "central", "data": "digits", "train": {"rounds": 1}}
    second = {"method": "fedavg", "train": {"rounds": 1, "epochs": 2}}
    starts = {"first": {"experiment": first}, "digits": {"experiment": second, "after": "first", "keep_head": True}}
    example = example_table(starts=starts)
    monkeypatch.setattr(catalogue, "load_tables", lambda: {example.name: example})
    reproduce_table("9.1", only="*pretrained")
    raws = [raw for _, raw in executed]
    assert [raw["method"]["name"] for raw in raws] == ["central", "fedavg", "fedavg", "fedprox"]
    folders = {row["id"] for row in Store("runs").runs()}
    weights = [raw.get("model", {}).get("weights") for raw in raws]
    assert weights[0] is None and weights[1] != weights[2] == weights[3]
    assert {Path(each).parent.name for each in weights[1:]} < folders
    assert [raw["model"].get("skip_head", False) for raw in raws] == [False, True, False, False]


def test_device_models_start_from_a_pretraining_of_their_own(monkeypatch: pytest.MonkeyPatch, executed: list) -> None:
    rows = {
        "FedAT": {
            "method": {"name": "fedat", "beta": 0.0, "transfer_lr": 1e-9, "metadata_share": 0.0},
            "train": {"lr": 1e-9},
            "model": {"name": "mlp", "hidden": 6, "ladder": [{"name": "mlp", "hidden": 6}]},
            "public": {"samples": 40},
            "devices_from_start": "small",
        }
    }
    small = {"method": "central", "model": {"name": "mlp", "hidden": 6}, "data": "digits"}
    changes = {"rows": rows, "published": {"FedAT": [1, None]}, "orderings": [], "cells": []}
    example = example_table(**changes, starts={"small": {"experiment": small, "keep_head": True}})
    monkeypatch.setattr(catalogue, "load_tables", lambda: {example.name: example})
    result = reproduce_table("9.1")
    assert not result.failed and [raw["method"]["name"] for _, raw in executed] == ["central", "fedat"]
    (rung,) = executed[1][1]["model"]["ladder"]
    assert rung["hidden"] == 6 and Path(rung["weights"]).is_file() and "weights" not in executed[1][1]["model"]
    # With such learning rates the models of the devices stay as they start.
    pretrained, trained = (
        {row["method"]: row["id"] for row in Store("runs").runs()}[name] for name in ("central", "fedat")
    )
    last = [Store("runs").rounds(run)[-1] for run in (pretrained, trained)]
    assert last[0]["accuracy"] == pytest.approx(last[1]["accuracy/devices"], abs=0.01) and last[0]["accuracy"] > 0.3
    reproduce_table("9.1")
    assert len(executed) == 2


def test_published_numbers_are_those_of_the_same_pretraining(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    example = example_table(published_from={"digits": {"FedAvg, pretrained": [55, None]}})
    monkeypatch.setattr(catalogue, "load_tables", lambda: {example.name: example})
    without = {each.cell.row: each.published for each in reproduce_table("9.1", only="FedAvg*").cells}
    assert without["FedAvg, pretrained"] == (55, None) and without["FedAvg"] == (50.5, 1.5)
    random = np.random.default_rng(0)
    np.savez(tmp_path / "drawings.npz", x=random.normal(size=(40, 1, 8, 8)).astype("float32"), y=np.arange(40) % 3)
    drawn = reproduce_table("9.1", only="FedAvg*", paths={"drawings": str(tmp_path / "drawings.npz")})
    assert {each.cell.row: each.published for each in drawn.cells}["FedAvg, pretrained"] == (60, None)


def test_small_gaps_get_four_seeds(table: Table, executed: list, monkeypatch: pytest.MonkeyPatch) -> None:
    accuracies = {"fedavg": [50, 50, 50, 50], "fedprox": [50.1, 52, 51, 51]}

    def measured(store: Store, run: str, metric: str) -> float:
        row = store.run(run)
        return accuracies[row["method"]][row["seed"]]

    monkeypatch.setattr(table_plan, "measure", measured)
    result = reproduce_table("9.1", seeds=2, only="FedAvg | FedProx")
    assert result.unsettled == [("FedAvg", "digits, even"), ("FedProx", "digits, even")]
    shown: list[TableResult] = []
    task = Reproduction(["9.1"], seeds=2, only="FedAvg | FedProx")
    settled = task.run(more_seeds=True, on_result=shown.append).tables["9.1"]
    assert shown == [settled]  # not the result with two seeds before it
    assert [each.seeds for each in settled.cells] == [(0, 1, 2, 3)] * 2 and len(executed) == 8
    assert settled.unsettled == [] and settled.orderings[0].verdict == "held"
    accuracies["fedprox"][1] = 50.1  # a difference of 0.1 with both seeds has no spread
    assert reproduce_table("9.1", seeds=2, only="FedAvg | FedProx", more_seeds=True).cells[0].seeds == (0, 1)


def test_a_column_that_is_a_seed_has_one_run(table: Table, executed: list, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {
        name: {"data": "digits", "run": {"seed": seed}} for seed, name in enumerate(("digits, even", "digits, too"))
    }
    example = example_table(columns=columns)
    monkeypatch.setattr(catalogue, "load_tables", lambda: {example.name: example})
    found = reproduce_table("9.1", only="FedAvg", more_seeds=True)
    assert [each.cell.raw["run"]["seed"] for each in found.cells] == [0, 1] and len(executed) == 2


def test_a_seed_of_a_column_is_added(table: Table, executed: list) -> None:
    columns = {"digits, even": {"data": "digits", "run": {"seed": 5}}, "pictures, even": {"data": "cifar10"}}
    example = example_table(columns=columns)
    job = plan_cell(
        build_cells(example, "smoke")[0], 2, {"device": "cpu"}, DataPaths({}), RunIndex(Store("runs", create=True))
    )
    assert [each.raw["run"]["seed"] for each in job.jobs] == [5, 6]


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


@pytest.mark.slow
def test_worker_processes_give_the_same_values(table: Table, finished: TableResult) -> None:
    fractions: dict[str, float] = {}
    planned: list[int] = []
    result = reproduce_table(
        "9.1", jobs=2, only="FedAvg*", on_plan=lambda workload: planned.append(len(workload.jobs)),
        on_progress=lambda job, fraction: fractions.__setitem__(job.key, fraction),
    )  # fmt: skip
    assert not result.failed and values(result).items() <= values(finished).items()
    assert planned == [3] and len(fractions) == 3 and set(fractions.values()) == {1.0}
    assert {row["status"] for row in Store("runs").runs()} == {"done"}


def test_a_worker_process_that_dies_fails_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool.sys, "executable", "false")
    process = worker_pool.WorkerProcess()
    for _ in range(2):
        reply = process.run({"raw": {}, "run": None, "out": "runs"}, lambda fraction: None)
        assert reply == {"failed": "its worker process ended with exit code 1", "input": False, "code": 1}
    process.close()


def test_a_failed_cell_does_not_stop_the_others(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_runs(monkeypatch, lambda raw: raw["method"]["name"] in ("fedprox", "central"))
    result = reproduce_table("9.1")
    assert list(values(result)["FedAvg/digits, even"]) and not values(result)["FedProx/digits, even"]
    assert result.failed["FedProx/digits, even"] == "RuntimeError: no luck"
    assert result.failed["FedAvg, pretrained/digits, even"] == "its pretraining failed: RuntimeError: no luck"


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
    with pytest.raises(InputError, match=f"{name} 0 must be "):
        reproduce_table("9.1", **{name: 0})


def test_metrics(finished: TableResult, finished_folder: Path) -> None:
    run, store = finished.cells[0].runs[0], Store(finished_folder)
    rounds, summary = store.rounds(run), store.run(run)["summary"]
    last, best = rounds[-1]["accuracy"], max(row["accuracy"] for row in rounds)
    assert measure(store, run, "final") == measure(store, run, "final accuracy") == pytest.approx(100 * last)
    assert measure(store, run, "final loss") == pytest.approx(100 * rounds[-1]["loss"])
    fractions = np.bincount(load("digits").test_y) / len(load("digits").test_y)
    by_class = [measure(store, run, f"class {label}") for label in range(10)]
    assert fractions @ by_class == pytest.approx(100 * last) and len(set(by_class)) > 1
    assert measure(store, run, "efficiency") == pytest.approx(100 * best / (summary["compute_seconds"] / 3600))
    assert mean_curve(store, [run, run], "accuracy") == tuple((row["round"], 100 * row["accuracy"]) for row in rounds)
    assert mean_curve(store, [run], "final") == ()
    with pytest.raises(RunError, match="has no 'accuracy/devices' in its rounds"):
        measure(store, run, "accuracy/devices")


def test_metadata_is_what_devices_send_beside_their_models() -> None:
    """FedSplit without a selection sends the features of every sample, and their labels."""
    options = {"level": "up", "selector": "all", "meta_epochs": 1}
    data = {"name": "digits", "train_samples": 100, "clients": 3, "holdout": 0, "partition": "iid"}
    raw = {"method": {"name": "fedsplit", **options}, "model": "wrn-10-1", "data": data, "train": {"rounds": 2}}
    run = worker.start({**raw, "run": {"out": "runs"}}).run
    maps, label, devices = 64 * 2 * 2 * 4, 8, 3
    extra = measure(Store("runs"), run, "metadata") * 1e6 - 100 * (maps + label)
    assert 0 <= extra <= 200 * devices  # names and shapes of the tensors
