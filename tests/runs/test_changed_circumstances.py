"""Resuming or reading a run after something changed: its model is gone, its data, the permissions of its folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import undergrowth as ug
from tests.fleet_files import fleet_file
from undergrowth.core import InputError
from undergrowth.methods import FedAvg, FedProx
from undergrowth.runs import Store
from undergrowth.runs.execution import resume, start

from .objects import dataset, linear
from .test_resume import ROUNDS, assert_same, tree, with_out

RELU, TANH = (lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)),
              lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)))  # fmt: skip


def relu() -> nn.Module:
    class Net(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).relu()

    return Net(6, 3)


def tanh() -> nn.Module:
    class Net(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).tanh()

    return Net(6, 3)


def test_resuming_writes_a_missing_model_again(tmp_path: Path) -> None:
    whole = start(with_out(tree(), str(tmp_path)))
    (whole.folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"has no model any more: .* is gone; resuming it writes it again"):
        _ = whole.model
    assert_same(resume("last", str(tmp_path)), whole)
    assert whole.model is not None


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_run_that_ends_before_its_first_round_has_a_status(tmp_path, monkeypatch, error):
    def stop(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["undergrowth.runs.execution"], "set_torch", stop)
        with pytest.raises(error):
            start(with_out(tree(), str(tmp_path)))
    store = Store(str(tmp_path))
    assert store.run(store.find("last"))["status"] == ("interrupted" if error is KeyboardInterrupt else "failed")
    store.close()
    assert len(resume("last", str(tmp_path)).history) == ROUNDS


@pytest.mark.parametrize(
    ("begun", "given", "said"),
    [
        (
            {"model": linear},
            {"model": lambda: nn.Sequential(linear())},
            "model: its weights have other names or shapes",
        ),
        ({"model": RELU}, {"model": TANH}, "the source of the model's layers has changed since the run began"),
        ({"model": relu}, {"model": tanh}, "the source of Net has changed"),
        ({"method": FedProx()}, {"method": FedAvg()}, "method: FedAvg is not that of run '.*', FedProx"),
        ({}, {"method": FedProx()}, "method: FedProx is not that of run '.*', FedAvg"),
    ],
)
def test_a_run_is_not_resumed_with_another_model_or_method(begun, given, said, out, interrupted):
    raw = tree() if "model" in begun else {**tree(), "model": "logistic"}
    interrupted({**raw, "data": {"clients": 4}}, 1, **{"data": dataset(), **begun})
    with pytest.raises(InputError, match=said):
        resume("last", out, **{"data": dataset(), **begun, **given})
    assert len(resume("last", out, data=dataset(), **begun).history) == ROUNDS


def _relabel(arrays: dict[str, Any]) -> None:
    arrays["y_test"] = arrays["y_test"][::-1]


def _rescale(arrays: dict[str, Any]) -> None:
    arrays["x"] = arrays["x"] * 1.01


@pytest.mark.parametrize("change", [_relabel, _rescale, None])
def test_a_run_is_not_resumed_with_other_data(
    tmp_path: Path, interrupted: Callable[..., None], out: str, change: Any
) -> None:
    given, path = dataset(), tmp_path / "given.npz"
    arrays = {
        "x": given.x.numpy(),
        "y": given.y.numpy(),
        "x_test": given.test_x.numpy(),
        "y_test": given.test_y.numpy(),
    }
    np.savez(path, **arrays)
    interrupted(tree(data={"name": "npz", "path": str(path)}), 1)
    if change is None:
        assert len(resume("last", out).history) == ROUNDS
        return
    change(arrays)
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=r"data: it is not the data of run '.*'; restore that data"):
        resume("last", out)
    np.savez(path, **{**arrays, "x": given.x.numpy(), "y_test": given.test_y.numpy()})
    assert len(resume("last", out).history) == ROUNDS


@pytest.mark.parametrize("named", ["fleet", "fleet.availability"])
def test_a_run_is_not_resumed_with_another_fleet_file(
    tmp_path: Path, interrupted: Callable[..., None], out: str, named: str
) -> None:
    fleet, trace = Path(fleet_file(tmp_path, sensor={"share": 1.0})), tmp_path / "trace.csv"
    trace.write_text("device,on,off\n" + "".join(f"device-{n:03d},0,50000\n" for n in range(4)), encoding="utf-8")
    section = {"name": str(fleet), "availability": f"trace:{trace}"}
    changed = fleet if named == "fleet" else trace
    interrupted(tree(fleet=section), 1)
    before = changed.read_text(encoding="utf-8")
    changed.write_text(before.replace("50000", "60000") + "# other\n" * (named == "fleet"), encoding="utf-8")
    with pytest.raises(InputError, match=rf"^{named}: its file has changed since run '.*' began; restore it"):
        resume("last", out)
    changed.write_text(before, encoding="utf-8")
    assert len(resume("last", out).history) == ROUNDS


@pytest.mark.parametrize("section", ["start", "model"])
def test_a_run_is_not_resumed_with_other_initial_weights(
    tmp_path: Path, interrupted: Callable[..., None], out: str, section: str
) -> None:
    weights = start(with_out(tree(), str(tmp_path))).folder / "model.safetensors"
    settings = tree()
    settings[section] = {**({"name": settings["model"]} if section == "model" else {}), "weights": str(weights)}
    interrupted(settings, 1)
    save_file({name: 2 * value for name, value in load_file(weights).items()}, weights)
    with pytest.raises(InputError, match=rf"^{section}.weights: its file has changed since run"):
        resume("last", out)


def test_runs_in_a_read_only_folder_can_be_read(tmp_path: Path, monkeypatch: Any) -> None:
    whole = start(with_out(tree(), str(tmp_path)))
    monkeypatch.setattr("os.access", lambda *_: False)
    before = sorted(tmp_path.iterdir())
    assert ug.load("last", out=str(tmp_path)).history == whole.history
    assert sorted(tmp_path.iterdir()) == before
    monkeypatch.undo()
    writer = Store(str(tmp_path), write=True)  # what it writes stays in the write-ahead log at first
    writer.set_status(whole.run, "interrupted")
    monkeypatch.setattr("os.access", lambda *_: False)
    reader = Store(str(tmp_path))
    assert reader.run(whole.run)["status"] == "interrupted"
    reader.close()
    writer.close()
