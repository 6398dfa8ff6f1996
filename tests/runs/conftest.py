"""Runs that take a twentieth of a second, in a folder of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import undergrowth as ug
from undergrowth.runs.execution import start

Run = Callable[..., ug.Result]


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def out(tmp_path: Any) -> str:
    return str(tmp_path / "runs")


@pytest.fixture
def run(out: str) -> Run:
    """ug.run with small settings."""

    def go(**settings: Any) -> ug.Result:
        small = {"model": "logistic", "rounds": 3, "out": out}
        if not isinstance(settings.get("data", ""), str) and hasattr(settings["data"], "devices"):
            return ug.run(**{**small, **settings})
        return ug.run(**{**small, "clients": 4, **settings})

    return go


@pytest.fixture
def interrupted(out: str) -> Callable[..., None]:
    """Starts a run and stops it as Ctrl-C would, after so many rounds."""

    def go(tree: dict[str, Any], after: int, **objects: Any) -> None:
        def stop(row: Any, execution: Any) -> None:
            if row["round"] == after:
                raise KeyboardInterrupt

        settings = {**tree, "run": {"out": out, **tree.get("run", {})}}
        with pytest.raises(KeyboardInterrupt):
            start(settings, on_round=stop, **objects)

    return go
