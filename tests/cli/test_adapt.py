"""A personal model from a finished run, for a device that was not in it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import undergrowth as ug
from tests.cli.conftest import last_json
from undergrowth.data import Dataset, load
from undergrowth.runs.execution import start


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run `runs`, and the samples of a device that has two classes of ten: `mine/mine.npz`."""
    folder = tmp_path_factory.mktemp("new device")
    data = {"clients": 4, "partition": "iid", "train_samples": 300}
    run = {"out": str(folder / "runs"), "engine": "serial"}
    start({"model": "logistic", "data": data, "train": {"rounds": 3}, "run": run})
    digits = load("digits")
    own = np.isin(digits.y, (3, 8))
    (folder / "mine").mkdir()
    np.savez(folder / "mine" / "mine.npz", x=digits.x[own][:120], y=digits.y[own][:120])
    return folder


@pytest.mark.parametrize("how", ["fine-tune", "freeze", "ditto", "ewc:1", "kd:2:0.5"])
def test_the_adapted_model_is_compared_and_written(how: str, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    before = (folder / "runs" / "undergrowth.sqlite").read_bytes()
    found = ug.adapt("last", folder / "mine", how, file=file, out=folder / "runs")
    assert list(found.accuracies) == ["local", "federated", how]
    assert found.beats == {each: found.accuracies[how] > found.accuracies[each] for each in ("local", "federated")}
    assert found.training_samples + found.test_samples == 120
    result = ug.load("last", folder / "runs")
    module = result.model
    module.load_state_dict(load_file(file))  # a plain state dict of the run's model
    data = load("npz", folder / "mine")
    x, y = data.central_test().x, data.central_test().y
    with torch.no_grad():
        assert float((module(x).argmax(1) == y).float().mean()) == pytest.approx(found.accuracies[how])
        federated = float((result.model(x).argmax(1) == y).float().mean())
    assert federated == pytest.approx(found.accuracies["federated"])
    assert (folder / "runs" / "undergrowth.sqlite").read_bytes() == before  # the run is as it was
    again = ug.adapt("last", folder / "mine", how, file=file, out=folder / "runs")
    assert all(torch.equal(again.weights[name], value) for name, value in found.weights.items())


def small(**changes: object) -> Dataset:
    digits = load("digits")
    x, y = digits.x[:40], digits.y[:40]
    return replace(Dataset("small", x, y, x, y, 10), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (small(x=np.zeros((40, 1, 9, 9), "f4"), test_x=np.zeros((40, 1, 9, 9), "f4")), r"shape \(1, 9, 9\), and those"),
        (small(y=np.full(40, 12), classes=13), "label 12 is not known to the run, whose labels are 0 to 9"),
        (small(x=np.zeros((3, 1, 8, 8), "f4"), y=np.arange(3)), "it has 3 training samples, and at least 4"),
        (small(class_names=("ten", *"123456789")), "label 'ten' is not known to the run"),
        ("nowhere", "there is no such file or folder"),
        ("table.csv", "a table is scaled by its own rows"),
        ("plain.txt", "is not an .npz file"),
        (".", "neither an .npz file nor a folder of images"),
        ("", "data is missing"),
    ],
)
def test_data_that_does_not_fit_is_refused(
    data: Dataset | str, message: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("table.csv", "plain.txt"):
        (tmp_path / name).write_text("a,b\n1,2\n")
    with pytest.raises(ug.InputError, match=message):
        ug.adapt("last", data, out=folder / "runs")
    assert not (tmp_path / "adapted.safetensors").exists()


def test_labels_are_matched_by_name(folder: Path, tmp_path: Path) -> None:
    """A data set that numbers its classes otherwise gives the same model."""
    digits = load("digits")
    kept = np.isin(digits.y, (3, 8))
    x, y = digits.x[kept][:60], digits.y[kept][:60]
    plain = Dataset("plain", x, y, x, y, 10)
    named = Dataset("named", x, (y == 3).astype(int), x, (y == 3).astype(int), 2, ("8", "3"))
    one, other = (
        ug.adapt("last", each, file=tmp_path / "m.safetensors", out=folder / "runs") for each in (plain, named)
    )
    assert one.accuracies == other.accuracies


def test_the_command(folder: Path, tmp_path: Path, type_command) -> None:
    file = str(tmp_path / "own.safetensors")
    words = ("adapt", "last", "--data", str(folder / "mine"), "--out", str(folder / "runs"), "-o", file)
    done = type_command(*words, "--how", "ditto:0.5", "--json")
    assert done.exit_code == 0, done.output
    found = last_json(done.stdout)
    assert found["how"] == "ditto:0.5" and found["file"] == file and set(found["beats"]) == {"local", "federated"}
    assert json.dumps(found) and load_file(file)
    done = type_command(*words)
    assert done.exit_code == 0 and "the adapted model beats" in done.stdout
    done = type_command(*words, "--how", "dito")
    assert done.exit_code == 2 and done.stderr == "error: how 'dito' is not known; did you mean 'ditto'?\n"
    done = type_command(*words[:-1], f"{file}/own.safetensors")
    assert done.exit_code == 2 and "own.safetensors' is not a folder); name another file" in done.stderr
    done = type_command(*words, "--epochs", "0")
    assert done.exit_code == 2 and "epochs 0" in done.stderr
