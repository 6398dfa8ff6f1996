"""A sweep: finished runs are reused, interrupted ones resumed, failures reported, and everything is checked first."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import undergrowth as ug
from tests.executed_runs import fail_runs
from undergrowth.core import InputError
from undergrowth.runs import Store
from undergrowth.runs.lock import lock_run
from undergrowth.sweeps import worker, worker_pool
from undergrowth.sweeps.api import run_sweep
from undergrowth.sweeps.planned_sweep import plan_sweep

SMALL: dict[str, Any] = {
    "data": {"name": "digits", "clients": 3, "train_samples": 60, "test_samples": 50},
    "model": "logistic",
    "train": {"rounds": 2},
    "run": {"engine": "serial"},
}
GRID = {**SMALL, "method": ["fedavg", {"name": "fedprox", "mu": [10.0]}], "run": {"engine": "serial", "seed": [0, 1]}}


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def digests(result: ug.SweepResult) -> list[str]:
    return [each.summary["model_digest"] for each in result.results]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> ug.SweepResult:
    """The result of the grid, run without interruption."""
    return ug.sweep(GRID, out=tmp_path_factory.mktemp("whole"))


def test_a_sweep_gives_what_single_runs_give(whole: ug.SweepResult) -> None:
    data = {key: value for key, value in SMALL["data"].items() if key.endswith("samples")}
    small = {"clients": 3, "data_options": data, "model": "logistic", "rounds": 2, "engine": "serial"}
    alone = ug.run("fedprox", options={"mu": 10.0}, seed=1, **small)
    assert whole.results[-1].summary["model_digest"] == alone.summary["model_digest"]
    fedavg, fedprox = whole.rows
    assert (fedavg["variant"], fedprox["variant"]) == ("fedavg", "fedprox, mu 10.0")
    accuracies = [[each.accuracy for each in whole.results[at : at + 2]] for at in (0, 2)]
    assert fedavg["accuracy"] == pytest.approx(np.mean(accuracies[0]))
    assert fedprox["difference"] == pytest.approx(np.mean(np.subtract(accuracies[1], accuracies[0])))
    assert f"{whole!r}" == "SweepResult(2 variants, 4 runs)"


def test_finished_runs_are_taken_from_the_store(whole: ug.SweepResult, executed: list[Any]) -> None:
    assert ug.sweep(GRID, out=whole.folder).runs == whole.runs and not executed
    # With another seed and another engine, only the run with that seed is missing.
    more = {**GRID, "method": "fedavg", "run": {"seed": [0, 1, 2], "engine": "vector", "threads": 2}}
    assert ug.sweep(more, out=whole.folder).runs[:2] == whole.runs[:2] and len(executed) == 1


def test_the_store_knows_the_sweeps_of_a_run(whole: ug.SweepResult) -> None:
    ug.sweep(GRID, out=whole.folder)  # other tests have used its runs in other sweeps
    listed = {row["run"]: row for row in ug.list(whole.folder)}
    sweeps = {listed[run]["sweep"] for run in whole.runs}
    assert len(sweeps) == 1 and None not in sweeps
    assert [listed[run]["variant"] for run in whole.runs] == [*["fedavg"] * 2, *["fedprox, mu 10.0"] * 2]
    Path("again.yaml").write_text(yaml.safe_dump({**GRID, "method": "fedavg"}), encoding="utf-8")
    assert ug.sweep("again.yaml", out=whole.folder).runs == whole.runs[:2]  # the last sweep that used a run counts
    listed = {row["run"]: row for row in ug.list(whole.folder)}
    assert [listed[run]["sweep"] == "again" for run in whole.runs] == [True, True, False, False]


def test_an_interrupted_run_is_resumed(whole: ug.SweepResult, executed: list[Any]) -> None:
    raw = {**GRID, "run": {"engine": "serial", "seed": 1}}

    def interrupt(job: Any, fraction: float) -> None:
        if job.experiment.method.name == "fedprox" and fraction == 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(plan_sweep(raw), 1, None, interrupt)
    assert [row["status"] for row in Store("runs").runs()] == ["done", "interrupted"]
    executed.clear()
    assert digests(ug.sweep(raw)) == digests(whole)[1::2]
    assert [kind for kind, _ in executed] == ["resume"]


@pytest.mark.slow
def test_several_runs_at_a_time_give_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    raw = {**SMALL, "run": {"seed": [0, 1]}}
    assert digests(ug.sweep(raw, jobs=2, out="two", progress=True)) == digests(ug.sweep(raw, out="one"))
    assert "2 of 2 runs: fedavg, seed" in capfd.readouterr().err


@pytest.mark.usefixtures("_handlers")
def test_a_worker_without_its_sweep_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of a sweep may be killed while its workers are starting, or during a run."""
    request = json.dumps({"raw": {**SMALL, "run": {"out": "alone"}}, "run": None, "out": "alone"})
    monkeypatch.setattr("sys.stdin", [request])
    with pytest.raises(SystemExit, match="130"):
        worker.main(parent=os.getppid() + 1)
    assert not Path("alone").exists()


@pytest.fixture
def _handlers() -> Iterator[None]:
    """Restores the handlers of signals that a worker sets in its process, which is this one."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["terminal", "background"])
@pytest.mark.usefixtures("_handlers")
def test_a_worker_ends_within_the_round_in_which_its_sweep_is_killed(
    monkeypatch: pytest.MonkeyPatch, handler: Any
) -> None:
    finished, parent = [], os.getppid()

    def start(raw: Any, **hooks: Any) -> None:
        monkeypatch.setattr(os, "getppid", lambda: parent + 1)
        time.sleep(30)
        finished.append(raw)

    signal.signal(signal.SIGINT, handler)
    monkeypatch.setattr(worker, "start", start)
    monkeypatch.setattr("sys.stdin", [json.dumps({"raw": SMALL, "run": None, "out": "alone"})])
    with pytest.raises(SystemExit, match="130"):
        worker.main(parent=parent)
    assert not finished


def test_a_sweep_waits_for_workers_of_a_killed_one(monkeypatch: pytest.MonkeyPatch, executed: list[Any]) -> None:
    """They still hold the locks of their runs for a moment."""

    def interrupt(job: Any, fraction: float) -> None:
        if fraction:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(plan_sweep(SMALL), 1, None, interrupt)
    with ExitStack() as orphan:
        orphan.enter_context(lock_run(Path("runs", ug.list("runs")[0]["run"])))
        monkeypatch.setattr("time.sleep", lambda seconds: orphan.close())
        assert len(ug.sweep(SMALL).runs) == 1 and [kind for kind, _ in executed][-1] == "resume"


@pytest.mark.usefixtures("_handlers")
def test_a_run_whose_sweep_was_killed_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    request = json.dumps({"raw": {**SMALL, "run": {"out": "alone"}}, "run": None, "out": "alone"})
    monkeypatch.setattr("sys.stdin", [request])
    monkeypatch.setattr("sys.stdout", Broken())
    with pytest.raises(SystemExit, match="130"):
        worker.main(parent=os.getppid())
    (run,) = ug.list("alone")
    assert (run["status"], run["rounds_done"]) == ("interrupted", 1)


def test_a_run_that_fails_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_runs(monkeypatch, lambda raw: raw["run"]["seed"] == 0)
    with pytest.warns(UserWarning, match="1 of 2 runs failed; fedavg, seed 0: RuntimeError: no luck"):
        result = ug.sweep({**SMALL, "run": {"engine": "serial", "seed": [0, 1]}})
    assert result.failed == {"fedavg, seed 0": "RuntimeError: no luck"} and len(result.runs) == 1
    assert result.rows[0]["seeds"] == 1


def test_a_run_is_reused_that_stores_more_than_its_file_says(executed: list[Any]) -> None:
    """A phase before the first round, adapters, and the number of rounds that `auto` stands for."""
    raw = {
        **SMALL,
        "model": "mlp",
        "method": ["fedncm-ft", "lora"],
        "run": {"engine": "serial", "evaluate_every": "auto"},
    }
    first = ug.sweep(raw)
    executed.clear()
    assert ug.sweep(raw).runs == first.runs and not executed


def test_a_run_that_was_refused_begins_again_when_it_may_continue(executed: list[Any]) -> None:
    raw: dict[str, Any] = {**SMALL, "train": {"rounds": 2, "lr": 1e30, "epochs": 3}, "model": "mlp"}
    with pytest.warns(UserWarning, match="if_all_refused=continue"):
        assert ug.sweep(raw).failed
    assert not ug.sweep({**raw, "run": {"engine": "serial", "if_all_refused": "continue"}}).failed


def test_a_run_that_a_callback_has_stopped_is_not_reused() -> None:
    class Stop:
        def on_round(self, row: Any, run: Any) -> None:
            run.stop("one round is enough")

    settings = {"model": "logistic", "clients": 3, "data_options": {"train_samples": 60, "test_samples": 50}}
    stopped = ug.run(**settings, rounds=2, engine="serial", callbacks=[Stop()], out="runs")
    (run,) = ug.sweep(SMALL).results
    assert len(stopped.history) == 1 and len(run.history) == 2


def test_choices_that_do_not_change_a_result_are_told_apart(executed: list[Any]) -> None:
    raw = {**SMALL, "run": [{"engine": "serial"}, {"engine": "vector"}, {"engine": "vector", "chunk": 2}]}
    assert [each.summary["engine"] for each in ug.sweep(raw).results] == ["serial", "vector", "vector"]
    assert len(executed) == 3 and ug.sweep(raw).runs and len(executed) == 3


def test_the_accuracy_to_reach(whole: ug.SweepResult) -> None:
    best = [max(row["accuracy"] for row in each.history) for each in whole.results]
    assert whole.goal == min(best)  # the highest that every run reached
    assert [row["reached"] for row in whole.rows] == [2, 2]
    assert ug.sweep(GRID, out=whole.folder, accuracy=0.01).rows[0]["rounds_to_accuracy"] == 1
    assert plan_sweep({**GRID, "stop": {"accuracy": 0.3}}).target == 0.3
    assert plan_sweep({**GRID, "stop": {"accuracy": [0.3, 0.4]}}).target is None


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"method": ["fedavg", "fedporx"]}, "variant 'fedporx': method 'fedporx' is not known; did you mean 'fedprox'"),
        ({"method": ["fedavg", {"name": "fedprox", "mu": [0.1, -1]}]}, "variant 'fedprox, mu -1': method.mu -1"),
        ({"train": {"lr": [0.1, "fast"]}}, "variant 'lr fast': train.lr 'fast' should be a valid number"),
        ({"run": {"seed": [[0], [1]]}}, r"run.seed \[0\] should be a valid integer"),
        ({"run": {"seed": [0, -1]}}, "run.seed -1 should be greater than or equal to 0"),
        ({"fleet": {"deadline": [60, 1e-6]}}, "variant 'deadline 1e-06': fleet.deadline 1e-06: no device can do"),
        (
            {"method": ["fedprox", {"name": "fedprox", "mu": 0.01}]},
            "variants 'fedprox' and 'fedprox, mu 0.01' are the sa",
        ),
        ({"run": {"out": ["a", "b"]}}, r"run.out \['a', 'b'\]: all runs of a sweep are in one folder"),
        ({5: 1}, "the key 5 must be a word, such as method"),
        ({"train": {True: [1, 2]}}, "train: the key True must be a word"),
        ({"metod": "fedavg"}, "metod is not a known key; did you mean 'method'"),
    ],
)
def test_everything_is_checked_before_anything_starts(raw: dict[str, Any], message: str, executed: list[Any]) -> None:
    with pytest.raises(InputError, match=message):
        ug.sweep({**SMALL, **raw})
    assert not executed and not list(Path().iterdir())


def test_arguments_are_checked() -> None:
    with pytest.raises(InputError, match="jobs 0 must be a whole number of at least 1"):
        ug.sweep(SMALL, jobs=0)
    with pytest.raises(InputError, match=r"accuracy '0\.9' must be above 0"):
        ug.sweep(SMALL, accuracy="0.9")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="accuracy 90 must be above 0 and at most 1"):
        ug.sweep(SMALL, accuracy=90)
    with pytest.raises(InputError, match="metric nan must be a finite number"):
        ug.sweep(SMALL, metric=float("nan"))
    for odd in (3, []):
        with pytest.raises(InputError, match="must be an experiment file or a dictionary, such as"):
            ug.sweep(odd)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"there is no experiment file 'nowhere\.yaml'"):
        ug.sweep("nowhere.yaml")


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool.os, "sched_getaffinity", lambda _: {0, 2, 4, 6, 8}, raising=False)
    assert [worker_pool.cores_of_worker(place, 2) for place in range(2)] == [[0, 4, 8], [2, 6]]
    assert [worker_pool.cores_of_worker(place, 7) for place in (0, 4, 5, 6)] == [[0], [8], [0], [2]]
    monkeypatch.delattr(worker_pool.os, "sched_getaffinity")
    assert worker_pool.cores_of_worker(0, 2) is None


def test_the_page_and_the_tables_have_the_names_of_the_variants(tmp_path: Path) -> None:
    named = [{"name": "slow", "train": {"lr": 0.01}}, {"name": "fast & loose", "train": {"lr": 0.5}}]
    result = ug.sweep({**SMALL, "run": {"engine": "serial", "seed": [0, 1]}, "sweep": named})
    page = result.page(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "fast &amp; loose, seed 1" in page and "fedavg, lr" not in page
    table = result.latex(tmp_path / "table.tex")
    assert (tmp_path / "table.tex").read_text(encoding="utf-8") == table
    first, second = table.splitlines()[4:6]
    assert first.startswith(f"slow & 2 & ${100 * result.rows[0]['accuracy']:.2f}")
    assert second.startswith("fast \\& loose & 2 & ")


def test_ctrl_c_while_a_worker_is_imported_prints_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    interrupted = tmp_path / "undergrowth" / "sweeps" / "worker.py"
    interrupted.parent.mkdir(parents=True)
    for package in (interrupted.parent, interrupted.parent.parent):
        (package / "__init__.py").touch()
    interrupted.write_text("import os, signal\ninput()  # the request\nos.kill(os.getpid(), signal.SIGINT)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    reply = worker_pool.WorkerProcess().run({}, lambda fraction: None)
    assert reply["failed"] == f"its worker process ended with exit code {-signal.SIGINT}"
    assert capfd.readouterr().err == ""
