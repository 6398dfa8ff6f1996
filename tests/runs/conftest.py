"""Small runs in a temporary output folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import undergrowth as ug
from undergrowth.runs.execution import start

from ..stopping import interrupt

Run = Callable[..., ug.Result]


@pytest.fixture
def out(tmp_path: Any) -> str:
    return str(tmp_path / "runs")


@pytest.fixture
def run(out: str) -> Run:
    """`ug.run` with small settings."""

    def go(**settings: Any) -> ug.Result:
        small = {"model": "logistic", "rounds": 3, "out": out}
        if not isinstance(settings.get("data", ""), str) and hasattr(settings["data"], "devices"):
            return ug.run(**{**small, **settings})
        return ug.run(**{**small, "clients": 4, **settings})

    return go


@pytest.fixture
def interrupted(out: str) -> Callable[..., None]:
    """Starts a run and interrupts it after the round `after`, as Ctrl-C does."""
    return partial(interrupt, out=out)


@pytest.fixture(scope="module")
def run_and_copy(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[ug.Result, Path]]:
    """Runs an experiment; returns its result and a copy of its folder as `kill -9` after a round leaves it behind.

    The same experiment runs only once per module.
    """
    known: dict[str, tuple[ug.Result, Path]] = {}

    def go(raw: dict[str, Any], after: int, **objects: Any) -> tuple[ug.Result, Path]:
        key = f"{raw} {after} {objects}"
        if key not in known:
            folder = tmp_path_factory.mktemp("run")

            def copy(row: Any, execution: Any) -> None:
                if row["round"] == after:
                    shutil.copytree(folder / "whole", folder / "copy")

            experiment = {**raw, "run": {**raw.get("run", {}), "out": str(folder / "whole")}}
            known[key] = start(experiment, on_round=copy, **objects), folder / "copy"
        return known[key]

    return go
