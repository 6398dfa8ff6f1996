"""A folder of runs that version 0 of the store wrote (0.1.0, before formats had numbers) can still be used.

`old_runs/` has one finished run and five interrupted ones. Each folder has `expected.safetensors`: the model that the
old version ended with when it resumed the run.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import undergrowth as ug
from tests.typed_commands import invoke
from undergrowth.runs.store import FILE, Store
from undergrowth.runs.stored_experiment import stored_experiment

OLD = Path(__file__).with_name("old_runs")
RUNS = sorted(path.name for path in OLD.iterdir() if path.is_dir())
INTERRUPTED = [run for run in RUNS if not (OLD / run / "model.safetensors").exists()]


@pytest.fixture(scope="module")
def old_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy for tests that only read. Nothing in it may change."""
    folder = tmp_path_factory.mktemp("old") / "runs"
    shutil.copytree(OLD, folder)
    return folder


def version(folder: Path) -> int:
    connection = sqlite3.connect(f"{(folder / FILE).as_uri()}?immutable=1", uri=True)
    try:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])
    finally:
        connection.close()


def type_command(*words: str) -> str:
    done = invoke(*words, COLUMNS="300")  # wide enough for all tables
    assert done.exit_code == 0, done.output
    return done.output


def test_the_folder_has_one_finished_and_five_interrupted_runs() -> None:
    assert (len(RUNS), len(INTERRUPTED)) == (6, 5)
    assert version(OLD) == 0


def test_old_runs_are_listed_shown_compared_and_reported(old_runs: Path, tmp_path: Path) -> None:
    before = (old_runs / FILE).read_bytes()
    out = ("--out", str(old_runs))
    listed = type_command("list", *out)
    assert all(run in listed for run in RUNS)
    for run in RUNS:
        assert run in type_command("show", run, *out)
    assert "train.sampler" in type_command("compare", *RUNS, *out)
    page = tmp_path / "page.html"
    type_command("report", *RUNS, "-o", str(page), *out)
    text = page.read_text(encoding="utf-8")
    assert all(run in text for run in RUNS) and "power-of-choice:2" in text
    assert (old_runs / FILE).read_bytes() == before  # readers do not migrate the file


def test_a_finished_old_run_is_loaded(old_runs: Path) -> None:
    (done,) = set(RUNS) - set(INTERRUPTED)
    result = ug.load(done, old_runs)
    for name, tensor in load_file(OLD / done / "expected.safetensors").items():
        assert torch.equal(result.model.state_dict()[name], tensor)
    assert len(list(result.ledger.rows())) == 3 * (4 + 2)  # rounds × (devices + edge servers)


def test_old_keys_and_defaults_are_brought_up_to_date(old_runs: Path) -> None:
    store = Store(old_runs)
    rows = {row["method"]: row for row in store.runs()}
    store.close()
    tuned = stored_experiment(rows["fedft-eds"])
    assert tuned.train.sampler == "power-of-choice:2"
    assert tuned.method.options["epochs"] == 2  # given by the user
    rows["fedft-eds"]["experiment"]["settings"]["method"].pop("epochs")
    assert stored_experiment(rows["fedft-eds"]).method.options["epochs"] == 5  # the default of version 0


@pytest.mark.parametrize("run", INTERRUPTED, ids=lambda run: run[16:])
def test_an_interrupted_old_run_resumes_to_the_model_of_the_old_version(run: str, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(OLD, folder)
    result = ug.resume(run, folder)
    assert [row["round"] for row in result.history] == [1, 2, 3]
    found, expected = load_file(result.folder / "model.safetensors"), load_file(folder / run / "expected.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():  # other CPUs round differently
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)
    assert version(folder) > 0
    assert ug.load(run, folder).accuracy == result.accuracy
