"""What the tests of the command line share: a way to type commands, and a run that is already there."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import undergrowth as ug
from undergrowth.cli.app import app

TINY = ("--model", "logistic", "--rounds", "2", "--clients", "4")


@pytest.fixture
def type_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Types a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # a narrow terminal folds the tables, and some test runners set it
    # Older versions mix standard error into standard output unless told not to; newer ones cannot be told.
    apart = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    return lambda *words: CliRunner(**apart).invoke(app, [str(word) for word in words])


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two finished runs; to look at, not to change."""
    folder = str(tmp_path_factory.mktemp("finished"))
    for method, options in (("fedavg", {}), ("fedprox", {"mu": 0.5})):
        ug.run(method=method, options=options, model="logistic", rounds=2, clients=4, out=folder)
    return folder


@pytest.fixture
def process(tmp_path: Path) -> Callable[[Sequence[str]], subprocess.Popen[str]]:
    """Starts a command as a process of its own, in an empty folder."""

    def start(words: Sequence[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "undergrowth.cli", *words],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ},
        )  # fmt: skip

    return start


def last_json(text: str) -> Any:
    return json.loads(text.splitlines()[-1])
