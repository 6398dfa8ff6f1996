"""Runs whose devices keep a state: the same bits whether the states are in memory or in a file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import undergrowth as ug
from undergrowth.engines import States
from undergrowth.runs import checkpoint
from undergrowth.runs.execution import resume, start

from ..stopping import facts
from .objects import digest, without_wall

METHODS = {
    "moon": {"method": {"name": "moon", "mu": 0.5}, "links": {"up": "topk:0.3"}},  # a state and a residual
    "local": {"method": {"name": "local"}},  # all models are evaluated
    "fedft": {"method": {"name": "fedft", "cache_features": True}},  # returns its state unchanged
}
ENGINES = {
    "serial": {"engine": "serial"},
    "processes": {"engine": "processes", "workers": 2},
    "vector": {"engine": "vector"},
}


def tree(method: str, engine: str, out: Path) -> dict[str, Any]:
    return {
        "data": {"name": "digits", "clients": 6, "partition": "iid"},
        "model": "mlp",
        "train": {"rounds": 4, "sample": 0.5, "batch": 64},
        **METHODS[method],
        "run": {**ENGINES[engine], "out": str(out)},
    }


def files(result: ug.Result) -> list[str]:
    return sorted(path.name for path in result.folder.glob("checkpoints/*"))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_the_same_if_all_states_are_in_a_file(method, engine, tmp_path, monkeypatch):
    expected = start(tree(method, engine, tmp_path / "memory"))
    sizes: list[int] = []

    def watch(row: Any, execution: Any) -> None:
        states = execution.federation.world.states
        assert not states._cached
        sizes.append(states._file.size)
        if row["round"] == 2:  # as `kill -9` would leave it behind
            shutil.copytree(tmp_path / "file", tmp_path / "killed")

    nothing = partial(States, 0)
    monkeypatch.setattr("undergrowth.runs.federation_builder.States", nothing)
    monkeypatch.setattr("undergrowth.engines.processes.engine.States", nothing)
    whole = start(tree(method, engine, tmp_path / "file"), on_round=watch)
    resumed = resume("last", str(tmp_path / "killed"), on_round=watch)
    assert len(sizes) == 6
    assert sizes[-1] > 50_000
    for result in (whole, resumed):
        assert digest(result) == digest(expected)
        assert files(result) == files(expected)  # unchanged states are not written again
        if engine != "processes":  # its rows contain measured seconds
            assert without_wall(result.history) == without_wall(expected.history)
        assert result.clients == expected.clients
        assert list(result.ledger.rows()) == list(expected.ledger.rows())


def test_states_of_many_devices_are_written_to_several_files_and_all_are_checked(tmp_path, monkeypatch):
    def copy(row: Any, execution: Any) -> None:
        if row["round"] == 2:
            shutil.copytree(tmp_path / "whole", tmp_path / "killed")

    monkeypatch.setattr(checkpoint, "MAX_DEVICES_PER_FILE", 2)
    settings = {**tree("local", "serial", tmp_path / "whole"), "train": {"rounds": 4, "batch": 64}}
    whole = start(settings, on_round=copy)
    assert files(whole) == sorted(
        f"{name}.safetensors"
        for round in ("00003", "00004")
        for name in (f"round-{round}", f"devices-{round}", f"devices-{round}-2", f"devices-{round}-3")
    )
    (last,) = (tmp_path / "killed").glob("*/checkpoints/devices-00002-3.safetensors")
    content = bytearray(last.read_bytes())
    content[-3] ^= 0x40
    last.write_bytes(bytes(content))
    resumed = resume("last", str(tmp_path / "killed"))
    assert any("devices-00002-3" in note and "went back" in note for note in resumed.notes)
    assert facts(resumed) == facts(whole)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_many_devices_with_a_model_each_need_the_memory_of_few(tmp_path):
    """150 models of 1 MB: evaluated, checkpointed, interrupted and resumed. In memory they would need 450 MB."""
    command = [sys.executable, str(Path(__file__).with_name("models_of_devices.py")), str(tmp_path)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout)
    assert found["file"] > 125e6
    assert found["peak"] < 125e6
