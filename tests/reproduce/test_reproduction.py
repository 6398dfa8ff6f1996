"""Running a table: runs are found again, stopped ones go on, pretraining is shared, what fails is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from undergrowth.core import InputError, RunError
from undergrowth.data import load
from undergrowth.reproduce import Report, Table, crew, reproduce, worker
from undergrowth.reproduce.findings import measured
from undergrowth.reproduce.jobs import read_paths
from undergrowth.reproduce.table import sides
from undergrowth.runs import Store


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNDERGROWTH_DATA", str(tmp_path / "data"))


@pytest.fixture
def done_here(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Every run that is started or resumed in this process."""
    seen: list[tuple[str, Any]] = []
    start, resume = worker.start, worker.resume
    monkeypatch.setattr(worker, "start", lambda tree, **on: (seen.append(("start", tree)), start(tree, **on))[1])
    monkeypatch.setattr(
        worker, "resume", lambda run, out, **on: (seen.append(("resume", run)), resume(run, out, **on))[1]
    )
    return seen


def figures(report: Report) -> dict[str, Any]:
    return {finding.cell.name: finding.values for finding in report.findings}


def test_a_second_call_takes_everything_from_the_store(table: Table, done_here: list) -> None:
    first = reproduce("9.1", seeds=2)
    # Four cells with two seeds, and one pretraining for all that ask for it.
    assert len(done_here) == 9 and [tree["method"]["name"] for _, tree in done_here].count("central") == 1
    assert set(figures(first)) == {f"{row}/digits, even" for row in table.rows}
    finding = first.findings[0]
    rounds = Store("runs").rounds(finding.runs[0])
    assert finding.values[0] == pytest.approx(100 * max(row["accuracy"] for row in rounds))
    assert finding.ours is not None and finding.ours.spread == pytest.approx(np.std(finding.values, ddof=1))
    assert figures(reproduce("9.1", seeds=2)) == figures(first) and len(done_here) == 9
    for verdict in first.verdicts:
        (high, *_), (low, *_) = sides(verdict.pair)
        pairs = zip(*(next(each.values for each in first.findings if each.cell.row == row) for row in (high, low)))
        assert verdict.seeds == tuple(one > other for one, other in pairs)
        assert f"{sum(verdict.seeds)} of 2 pairs of one seed" in f"{verdict}"
    # More seeds, another folder for the data, another engine: only what is new is run.
    again = reproduce("9.2", seeds=3, engine="vector", only="FedAvg")
    assert len(done_here) == 10 and figures(again)["FedAvg/digits, even"][:2] == finding.values


def test_pretrained_weights_are_those_of_the_run_before(table: Table, done_here: list) -> None:
    reproduce("9.1", only="FedAvg, pretrained")
    (_, pretraining), (_, tree) = done_here
    assert pretraining["method"]["name"] == "central"
    (central,) = [row["id"] for row in Store("runs").runs() if row["method"] == "central"]
    assert tree["model"]["weights"] == str(Path("runs") / central / "model.safetensors") and tree["model"]["skip_head"]


def test_what_was_stopped_goes_on(table: Table, done_here: list) -> None:
    untouched = figures(reproduce("9.1", out="whole"))
    done_here.clear()

    def stop(job: Any, share: float) -> None:
        if job.tree["method"]["name"] == "fedprox" and share == 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce("9.1", on_share=stop)
    before = {row["id"]: row["status"] for row in Store("runs").runs()}
    assert sorted(before.values()) == ["done", "done", "interrupted"]
    done_here.clear()
    assert figures(reproduce("9.1")) == untouched
    resumed = [what for kind, what in done_here if kind == "resume"]
    assert [before[run] for run in resumed] == ["interrupted"] and len(done_here) == 3


def test_several_at_a_time_give_the_same(table: Table) -> None:
    shares: dict[str, float] = {}
    told: list[int] = []
    report = reproduce(
        "9.1", jobs=2, out="side by side", only="FedAvg*", on_plan=lambda jobs: told.append(len(jobs)),
        on_share=lambda job, share: shares.__setitem__(job.key, share),
    )  # fmt: skip
    assert figures(report) == figures(reproduce("9.1", only="FedAvg*")) and not report.failed
    assert told == [2] and len(shares) == 3 and set(shares.values()) == {1.0}
    assert {row["status"] for row in Store("side by side").runs()} == {"done"}


def test_a_process_that_dies_costs_one_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew.sys, "executable", "false")
    member = crew.Worker()
    for _ in range(2):
        answer = member({"tree": {}, "run": None, "out": "runs"}, lambda share: None)
        assert answer == {"failed": "the process that did it ended with exit code 1", "input": False}
    member.close()


def test_a_cell_that_fails_does_not_stop_the_others(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = worker.start

    def start(tree: Any, **on: Any) -> Any:
        if tree["method"]["name"] in ("fedprox", "central"):
            raise RuntimeError("no luck")
        return begun(tree, **on)

    monkeypatch.setattr(worker, "start", start)
    report = reproduce("9.1")
    assert list(figures(report)["FedAvg/digits, even"]) and not figures(report)["FedProx/digits, even"]
    assert report.failed["FedProx/digits, even"] == "RuntimeError: no luck"
    assert report.failed["FedAvg, pretrained/digits, even"] == "the pretraining that it starts from failed"


def test_data_that_is_not_there(table: Table, tmp_path: Path) -> None:
    report = reproduce("9.1", "full", seeds=1, only="FedAvg")
    assert list(figures(report)) == ["FedAvg/digits, even"]
    assert report.left_out == {"FedAvg/pictures, even": "there is no cifar10"}
    with pytest.raises(InputError, match=r"needs data that is not there: cifar10 \(give --data-path cifar10=FOLDER"):
        reproduce("9.1", "full", only="/pictures*")
    with pytest.raises(InputError, match="--data-path cifar10=nowhere: there is no such folder"):
        reproduce("9.1", "full", paths={"cifar10": "nowhere"})
    with pytest.raises(InputError, match="cifar10"):  # a folder without the files
        reproduce("9.1", "full", only="/pictures*", seeds=1, paths={"cifar10": str(tmp_path)})


def test_the_first_source_that_is_there_is_pretrained_on(table: Table, tmp_path: Path, done_here: list) -> None:
    random = np.random.default_rng(0)
    np.savez(tmp_path / "drawings.npz", x=random.normal(size=(40, 1, 8, 8)).astype("float32"), y=np.arange(40) % 3)
    reproduce("9.1", only="FedAvg, pretrained", paths={"drawings": str(tmp_path / "drawings.npz")})
    assert done_here[0][1]["data"] == {"name": "npz", "path": str(tmp_path / "drawings.npz")}


def test_paths_of_the_command_line() -> None:
    assert read_paths(["drawings=a=b", "mnist=c"], {"drawings"}) == {"drawings": "a=b", "mnist": "c"}
    with pytest.raises(InputError, match="must be NAME=FOLDER"):
        read_paths(["cifar10"], {"cifar10"})
    with pytest.raises(InputError, match="'cifr10' is not known; did you mean 'cifar10'"):
        read_paths(["cifr10=x"], {"cifar10"})


def test_wrong_numbers(table: Table) -> None:
    for wrong in ({"seeds": 0}, {"jobs": 0}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} must be at least 1"):
            reproduce("9.1", **wrong)


def test_other_figures_than_the_best_of_all_rounds() -> None:
    tree = {"model": "logistic", "data": {"clients": 3, "holdout": 0}, "train": {"rounds": 2, "lr": 0.01}}
    run = worker.start(tree).run
    store = Store("runs")
    last = store.rounds(run)[-1]["accuracy"]
    assert measured(store, run, "final") == pytest.approx(100 * last)
    shares = np.bincount(load("digits").test_y) / len(load("digits").test_y)
    by_class = [measured(store, run, f"class {label}") for label in range(10)]
    assert shares @ by_class == pytest.approx(100 * last) and len(set(by_class)) > 1
    with pytest.raises(RunError, match="has no 'accuracy/devices' in its rounds"):
        measured(store, run, "accuracy/devices")
