"""Fixtures of the command line tests: commands in this process and in another one, and finished runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import undergrowth as ug
from tests.typed_commands import invoke

TINY = ("--model", "logistic", "--rounds", "2", "--clients", "4")
TIMEOUT = 600  # seconds; a test only takes this long if the event it waits for never happens


@pytest.fixture
def type_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Invokes a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # some test runners set it, and a narrow terminal wraps tables
    return invoke


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with two finished runs, which tests must not change."""
    folder = str(tmp_path_factory.mktemp("finished"))
    for method, options in (("fedavg", {}), ("fedprox", {"mu": 0.5})):
        ug.run(method=method, options=options, model="logistic", rounds=2, clients=4, out=folder)
    return folder


@pytest.fixture
def process(tmp_path: Path) -> Callable[[Sequence[str]], subprocess.Popen[str]]:
    """Starts a command in another process, in an empty folder."""

    def start(words: Sequence[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "undergrowth", *words],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ},
        )  # fmt: skip

    return start


def wait_until(happened: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    """Waits until `happened()` is true. Fails if the process ends before that."""
    deadline = time.monotonic() + TIMEOUT
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def last_json(text: str) -> Any:
    return json.loads(text.splitlines()[-1])
