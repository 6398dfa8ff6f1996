"""Worker processes that compute their clients in stacks give what the serial engine gives."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import undergrowth as ug
from undergrowth.runs.execution import Execution, start
from undergrowth.runs.store import MODEL_FILE

from ..double_precision import double_data, double_model

DATA = double_data("digits", train_samples=300)


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_stacked_workers_give_what_the_serial_engine_gives(method: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"method": method, "clients": 9, "rounds": 2, "out": str(tmp_path), "progress": False}
    objects = {"data": DATA, "model": double_model(DATA, "mlp")}
    serial = ug.run(engine="serial", **settings, **objects)
    ours = ug.run(engine="processes", workers=2, stack=True, **settings, **objects)
    assert sorted(ours.ledger.rows()) == sorted(serial.ledger.rows())
    expected = safetensors.torch.load_file(serial.folder / MODEL_FILE)
    for name, value in safetensors.torch.load_file(ours.folder / MODEL_FILE).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-10)


def test_a_stacked_worker_that_is_killed_is_replaced_and_no_bit_changes(tmp_path: Path) -> None:
    raw = {
        "data": {"clients": 9, "train_samples": 300},
        "model": "mlp",
        "train": {"rounds": 3},
        "run": {"engine": "processes", "workers": 2, "stack": True, "out": str(tmp_path)},
    }
    killed: list[int] = []

    def kill(row: object, execution: Execution) -> None:
        if not killed:
            pids = execution.federation.engine.pids  # type: ignore[attr-defined]
            killed.append(next(iter(pids.values())))
            os.kill(killed[0], signal.SIGKILL)

    assert start(raw, on_round=kill).summary["model_digest"] == start(raw).summary["model_digest"]
    assert killed
