"""A hundred thousand devices need little more memory than ten if few of them are asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CROWD = 100_000


def measured(count: int, out: Path, *more: str) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).with_name("crowd.py")), str(count), str(out), *more]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    return json.loads(printed)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: Any) -> dict[str, Any]:
    return measured(CROWD, tmp_path_factory.mktemp("crowd"))


@pytest.fixture(scope="module")
def ten(tmp_path_factory: Any) -> dict[str, Any]:
    return measured(10, tmp_path_factory.mktemp("ten"))


def test_a_run_with_very_many_devices_fits_in_a_gigabyte(crowd, ten):
    assert crowd["peak"] < 1_000_000_000
    assert crowd["peak"] - ten["peak"] < 300_000_000


def test_only_shards_of_asked_devices_are_made(crowd):
    assert crowd["asked"] == 30
    assert crowd["made"] <= crowd["asked"] + 5  # and some to check the data
    assert crowd["rows"] == CROWD


@pytest.mark.slow
@pytest.mark.parametrize(("method", "peak"), [("fedavg", 1.0e9), ("scaffold", 2.0e9), ("bhfl", 2.0e9)])
def test_a_tree_of_very_many_devices_with_a_hundred_asked_by_each_server_needs_bounded_memory(method, peak, tmp_path):
    # Devices of the last two have states. Those beyond 256 MB are in a file, but the uploads of a round are in memory.
    deep = measured(CROWD, tmp_path, f"tree:100x{CROWD // 100}", "0.1", method)
    assert deep["asked"] == 3 * 100 * 100
    assert deep["made"] <= deep["asked"] + 5
    assert deep["rows"] == CROWD
    assert deep["peak"] < peak
