"""Runs whose devices keep a model each: the same bit for bit whether that is in memory or in a file."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import undergrowth as ug
from undergrowth.engines import States
from undergrowth.runs import checkpoint
from undergrowth.runs.run import resume, start

from .objects import digest, without_wall

METHODS = {
    "moon": {"method": {"name": "moon", "mu": 0.5}, "links": {"up": "topk:0.3"}},  # an own state and a residual
    "local": {"method": {"name": "local"}},  # all models are evaluated
    "fedft": {"method": {"name": "fedft", "warm_rounds": 1, "cache_features": True}},  # hands back what it got
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


def stop(row: Any, execution: Any) -> None:
    if row["round"] == 2:
        raise KeyboardInterrupt


def files(result: ug.Result) -> list[str]:
    return sorted(path.name for path in result.folder.glob("checkpoints/*"))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_the_same_when_all_states_are_in_the_file(method, engine, tmp_path, monkeypatch):
    expected = start(tree(method, engine, tmp_path / "memory"))
    sizes: list[int] = []

    def watch(row: Any, execution: Any) -> None:
        states = execution.federation.world.states
        assert not states._cached
        sizes.append(states._file.size)

    nothing = partial(States, 0)
    monkeypatch.setattr("undergrowth.runs.federation.States", nothing)
    monkeypatch.setattr("undergrowth.engines.processes.engine.States", nothing)
    whole = start(tree(method, engine, tmp_path / "file"), on_round=watch)
    with pytest.raises(KeyboardInterrupt):
        start(tree(method, engine, tmp_path / "stopped"), on_round=stop)
    resumed = resume("last", str(tmp_path / "stopped"), on_round=watch)
    assert len(sizes) == 6
    assert sizes[-1] > 50_000
    for result in (whole, resumed):
        assert digest(result) == digest(expected)
        assert files(result) == files(expected)  # what is unchanged is not written down again
        if engine != "processes":  # its rows say how well the work was placed, in seconds
            assert without_wall(result.history) == without_wall(expected.history)
        assert result.clients == expected.clients
        assert list(result.ledger.rows()) == list(expected.ledger.rows())


def test_states_of_many_devices_are_written_in_several_files_and_all_are_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "MOST_DEVICES", 2)
    settings = {**tree("local", "serial", tmp_path / "whole"), "train": {"rounds": 4, "batch": 64}}
    whole = start(settings)
    assert files(whole) == sorted(
        f"{name}.safetensors"
        for round in ("00003", "00004")
        for name in (f"round-{round}", f"devices-{round}", f"devices-{round}-2", f"devices-{round}-3")
    )
    settings["run"] = {**settings["run"], "out": str(tmp_path / "stopped")}
    with pytest.raises(KeyboardInterrupt):
        start(settings, on_round=stop)
    (last,) = (tmp_path / "stopped").glob("*/checkpoints/devices-00002-3.safetensors")
    content = bytearray(last.read_bytes())
    content[-3] ^= 0x40
    last.write_bytes(bytes(content))
    resumed = resume("last", str(tmp_path / "stopped"))
    assert any("devices-00002-3" in note and "went back" in note for note in resumed.notes)
    assert digest(resumed) == digest(whole)
    assert without_wall(resumed.history) == without_wall(whole.history)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_many_devices_with_a_model_each_need_the_memory_of_few(tmp_path):
    """150 of 1 MB each: evaluated, written down, stopped and taken up again. All at once they would be 450 MB."""
    command = [sys.executable, str(Path(__file__).with_name("models_of_devices.py")), str(tmp_path)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout)
    assert found["file"] > 125e6
    assert found["peak"] < 125e6
