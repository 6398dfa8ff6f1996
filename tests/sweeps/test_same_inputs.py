"""Finished runs are taken from the store as long as their data, source and files are those that they began with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file

import undergrowth as ug
from tests.fleet_files import fleet_file

from .test_sweep import SMALL


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_on_other_data_is_not_reused(executed: list[Any]) -> None:
    random = np.random.default_rng(0)
    for name, shift in (("a", 0.0), ("b", 1.0)):
        x = random.normal(shift, size=(40, 1, 4, 4)).astype("float32")
        np.savez(f"{name}.npz", x=x, y=np.arange(40) % 2)
    raw = {**SMALL, "data": {"name": "npz", "path": ["a.npz", "b.npz"], "clients": 2}}
    first = ug.sweep(raw)
    assert [row["variant"] for row in first.rows] == ["path a.npz", "path b.npz"]
    assert len(executed) == 2 and ug.sweep(raw).runs == first.runs and len(executed) == 2
    Path("b.npz").rename("a.npz")
    assert len(ug.sweep({**raw, "data": {**raw["data"], "path": "a.npz"}}).runs) == 1 and len(executed) == 3


def test_runs_on_streams_of_one_file_are_reused(executed: list[Any]) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
    np.savez("a.npz", x=x, y=np.arange(60) % 2)
    data = {"name": "npz", "path": "a.npz", "clients": 2, "partition": "iid"}
    raw = {**SMALL, "data": data, "stream": {"memory": [5, 10], "arrive": 2}}
    first = ug.sweep(raw)
    assert len(executed) == 2 and ug.sweep(raw).runs == first.runs and len(executed) == 2


def test_a_run_of_an_own_model_is_reused_until_its_source_changes(
    executed: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    body = "    return nn.Sequential(nn.Flatten(), nn.Linear(*sizes))\n"
    source = f"from torch import nn\n\ndef Net(sizes: list[int]):\n{body}"
    Path("swept_model.py").write_text(source, encoding="utf-8")
    raw = {**SMALL, "model": {"name": "swept_model:Net", "sizes": [64, 10]}}
    first = ug.sweep(raw)
    assert ug.sweep(raw).runs == first.runs and len(executed) == 1
    Path("swept_model.py").write_text(f"{source}\n# changed\n", encoding="utf-8")
    assert ug.sweep(raw).runs != first.runs and len(executed) == 2


def test_a_run_of_a_fleet_file_is_reused_until_the_file_changes(executed: list[Any], tmp_path: Path) -> None:
    raw = {**SMALL, "fleet": fleet_file(tmp_path, sensor={"share": 1.0})}
    first = ug.sweep(raw)
    assert ug.sweep(raw).runs == first.runs and len(executed) == 1
    fleet_file(tmp_path, sensor={"share": 1.0, "flops": 2e9})
    assert ug.sweep(raw).runs != first.runs and len(executed) == 2


def test_a_run_of_initial_weights_is_reused_until_their_file_changes(executed: list[Any]) -> None:
    for seed in (0, 1):
        save_file(ug.load(ug.sweep({**SMALL, "run": {"seed": seed}}).runs[0]).model.state_dict(), f"{seed}.safetensors")
    raw = {**SMALL, "start": {"weights": "0.safetensors"}}
    first = ug.sweep(raw)
    assert ug.sweep(raw).runs == first.runs and len(executed) == 3
    Path("1.safetensors").rename("0.safetensors")
    assert ug.sweep(raw).runs != first.runs and len(executed) == 4


@pytest.mark.parametrize("named", ["public", "start"])
def test_a_run_is_reused_until_the_data_of_its_server_changes(executed: list[Any], named: str) -> None:
    def write(first: int) -> None:
        x = np.random.default_rng(first).random((40, 1, 8, 8)).astype("float32")
        np.savez("server.npz", x=x, y=np.arange(40) % 10)

    data = {"name": "npz", "path": "server.npz"}
    fedmd = {"name": "fedmd", "pretrain_epochs": 1, "server_epochs": 1}
    own = {"method": fedmd, "public": data} if named == "public" else {"start": {"data": data, "epochs": 1}}
    write(0)
    first = ug.sweep({**SMALL, **own})
    assert ug.sweep({**SMALL, **own}).runs == first.runs and len(executed) == 1
    write(1)
    assert ug.sweep({**SMALL, **own}).runs != first.runs and len(executed) == 2
