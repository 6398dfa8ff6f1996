"""`undergrowth bench`: the list, lines as they come, and the exit code of a missed bar."""

from __future__ import annotations

import pytest

from tests.cli.conftest import last_json
from undergrowth import bench


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    good = bench.Measurement("a good one", "clients/s", 200.0, 100.0, 0.9)
    bad = bench.Measurement("a slow one", "seconds", 3.0, 2.0, 1.05, lower_is_better=True)
    table = {"good": ("what is good", lambda: iter([good])), "mixed": ("what is not", lambda: iter([good, bad]))}
    monkeypatch.setattr(bench, "BENCHMARKS", table)


def test_the_list(type_command) -> None:
    done = type_command("bench")
    assert done.exit_code == 0 and all(name in done.stdout for name in bench.BENCHMARKS)
    assert [row["benchmark"] for row in last_json(type_command("bench", "--json").stdout)] == list(bench.BENCHMARKS)
    done = type_command("bench", "clok")
    assert done.exit_code == 2 and "did you mean 'clock'?" in done.stderr


def test_bars_that_are_met(type_command, benchmarks) -> None:
    done = type_command("bench", "good")
    assert done.exit_code == 0, done.output
    for words in ("what is good", "a good one", "200", "100", "2.000", "at least 0.9", "met", "clients/s"):
        assert words in done.stdout


def test_a_bar_that_is_missed(type_command, benchmarks) -> None:
    done = type_command("bench", "mixed")
    assert done.exit_code == 3
    assert "a good one" in done.stdout and "at most 1.05" in done.stdout and "missed" in done.stdout
    assert done.stderr.splitlines() == ["missed 1 of 2 bars of bench mixed: a slow one"]
    done = type_command("bench", "mixed", "--json")
    assert done.exit_code == 3
    rows = last_json(done.stdout)
    assert [row["met"] for row in rows] == [True, False]
    assert list(rows[0]) == ["what", "ours", "reference", "unit", "ratio", "bar", "lower_is_better", "met"]
