"""Invented runs for the tests of figures and pages."""

from __future__ import annotations

import math
from typing import Any

import pytest

from undergrowth.report.run_record import RunRecord
from undergrowth.runs.config import Experiment


def record(
    run: str = "20260101-000000-fedavg-0001",
    rounds: int = 3,
    devices: int = 5,
    *,
    settings: dict[str, Any] | None = None,
    accurate: bool = True,
    status: str = "done",
    objects: dict[str, str | None] | None = None,
) -> RunRecord:
    described = Experiment.model_validate(settings or {}).model_dump(mode="json")
    history = [
        {
            "round": number, "accuracy": number / (rounds + 1), "loss": 1 / number, "simulated_seconds": 2.0 * number,
            "wall_seconds": 0.1, "arrived": 4, "lost": number % 2, "refused": 0, "late": 1, "bytes_down": 100 * number,
            "bytes_up": 90 * number, "flops": 1e6 * number, "joules": 0.5 * number,
        }
        for number in range(1, rounds + 1)
    ]  # fmt: skip
    device_rows = [
        {
            "device": f"device-{number:05d}", "tier": ("slow", "fast")[number % 2], "samples": number % 700,
            "accuracy": number % 11 / 10 if accurate else None, "rounds": number % 4, "bytes_down": 100,
            "bytes_up": 90, "flops": 1e6, "joules": 0.1, "compute_seconds": 0.01, "memory": 5000,
        }
        for number in range(devices)
    ]  # fmt: skip
    row = {
        "id": run, "created": "2026-01-01 00:00:00", "status": status, "method": described["method"]["name"],
        "data": described["data"]["name"], "model": described["model"]["name"], "seed": described["run"]["seed"],
        "rounds": rounds, "clients": devices, "engine": "serial", "notes": ["round 1: <b>strange</b>"],
        "summary": history[-1] if history else {},
        "version": None, "experiment": {
            "settings": described, "defaults": {}, "objects": objects or {"method": None, "data": None, "model": None},
        },
    }  # fmt: skip
    return RunRecord(run, row, history, device_rows, f"undergrowth resume {run}")


@pytest.fixture
def diverged() -> RunRecord:
    """A run whose loss diverged and became NaN; the store returns NaN as None."""
    run = record(rounds=4)
    for row, loss in zip(run.rounds, (1.0, 1e30, math.nan, None), strict=True):
        row["loss"] = loss
    return run
