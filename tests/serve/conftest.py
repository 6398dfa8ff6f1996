"""Runs that are written to a store without training, and a client of the site about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from undergrowth.runs import Store
from undergrowth.runs.config import Experiment
from undergrowth.runs.lock import lock_run
from undergrowth.serve.site import build_app


class WrittenRuns:
    """Writes runs to the store of a folder as a run does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder, create=True)

    def begin(
        self,
        method: str = "fedavg",
        *,
        options: dict[str, Any] | None = None,
        rounds: int = 4,
        seed: int = 0,
        metric: str = "accuracy",
        **settings: Any,
    ) -> str:
        """A run whose process is gone before its first round. `metric`: the main one of its task."""
        described = {
            "method": {"name": method, **(options or {})},
            "train": {"rounds": rounds},
            "run": {"seed": seed},
            **settings,
        }
        kept = {
            "settings": Experiment.model_validate(described).model_dump(mode="json"), "defaults": {},
            "objects": {"method": None, "data": None, "model": None},
            "task": {"name": "any", "main": [metric, True], "metrics": [metric]},
        }  # fmt: skip
        facts = {
            "method": method, "data": "digits", "model": "cnn", "seed": seed, "rounds": rounds, "clients": 2,
            "engine": "serial",
        }  # fmt: skip
        return self.store.create(facts, kept)

    def finish_round(self, run: str, number: int) -> None:
        row = {
            "round": number, "accuracy": 0.1 * number, "loss": 1 / number, "simulated_seconds": 2.0 * number,
            "wall_seconds": 0.1 * number, "arrived": 2, "lost": 0, "refused": 0, "late": 0, "bytes_down": 100 * number,
            "bytes_up": 100 * number, "flops": 1e6 * number, "joules": 0.5 * number,
        }  # fmt: skip
        self.store.finish_round(run, [row], [], None)

    def finish(self, run: str) -> None:
        last = self.store.last_round(run)
        devices = [
            {"device": f"device-{number}", "tier": "phone-mid", "samples": 9, "accuracy": 0.5, "rounds": last["round"]}
            for number in range(2)
        ]  # fmt: skip
        self.store.finish_run(run, {**last, "rounds": last["round"]}, devices)

    def finished(self, method: str = "fedavg", *, rounds: int = 2, **settings: Any) -> str:
        run = self.begin(method, rounds=rounds, **settings)
        for number in range(1, rounds + 1):
            self.finish_round(run, number)
        self.finish(run)
        return run

    @contextmanager
    def running(self, method: str = "fedavg", **settings: Any) -> Iterator[str]:
        """A run that a process works on during the block."""
        run = self.begin(method, **settings)
        with lock_run(self.folder / run):
            yield run


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[WrittenRuns]:
    written = WrittenRuns(tmp_path / "runs")
    with closing(written.store):
        yield written


@pytest.fixture
def client(runs: WrittenRuns) -> TestClient:
    return TestClient(build_app(runs.folder), base_url="http://127.0.0.1")
