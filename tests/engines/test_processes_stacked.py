"""Worker processes that compute their clients in stacks give what the serial engine gives."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import safetensors.torch
import torch

import undergrowth as ug
from undergrowth.runs.result import MODEL_FILE
from undergrowth.runs.run import Execution, start


@pytest.mark.parametrize("method", ["fedavg", "local", "fedbuff"])
def test_stacked_workers_equal_serial(method: str, tmp_path: Path) -> None:
    settings = {"method": method, "model": "mlp", "clients": 9, "rounds": 4, "out": str(tmp_path), "progress": False}
    serial = ug.run(engine="serial", **settings)
    first, second = (ug.run(engine="processes", workers=2, stack=True, **settings) for _ in range(2))
    assert first.summary["model_digest"] == second.summary["model_digest"]
    assert sorted(first.ledger.rows()) == sorted(serial.ledger.rows())
    expected = safetensors.torch.load_file(serial.folder / MODEL_FILE)
    for name, value in safetensors.torch.load_file(first.folder / MODEL_FILE).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-5)


def test_a_stacked_worker_that_is_killed_is_replaced_and_no_bit_changes(tmp_path: Path) -> None:
    tree = {
        "data": {"clients": 9},
        "model": "mlp",
        "train": {"rounds": 4},
        "run": {"engine": "processes", "workers": 2, "stack": True, "out": str(tmp_path)},
    }
    killed: list[int] = []

    def kill(row: object, execution: Execution) -> None:
        if not killed:
            pids = execution.federation.engine.pids  # type: ignore[attr-defined]
            killed.append(next(iter(pids.values())))
            os.kill(killed[0], signal.SIGKILL)

    assert start(tree, on_round=kill).summary["model_digest"] == start(tree).summary["model_digest"]
    assert killed
