"""`bench start` measures processes from outside."""

from __future__ import annotations

import sys

import pytest

from undergrowth.bench import start
from undergrowth.core import RunError


def test_a_command_is_measured_with_its_cpu_time() -> None:
    wall, cpu = start.run_command([sys.executable, "-c", "sum(range(3_000_000))"])
    assert wall > 0 and cpu > 0


def test_a_command_that_fails_is_an_error() -> None:
    with pytest.raises(RunError, match="no such thing"):
        start.run_command([sys.executable, "-c", "raise SystemExit('no such thing')"])


def test_the_bar_is_made_of_the_reference_in_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"-m": (3.0, 2.0), "-c": (2.0, 1.5)}
    monkeypatch.setattr(start, "run_command", lambda command: times[command[1]])
    wall, cpu = (line for line in start.measure() if not isinstance(line, str))
    assert (wall.ours, wall.reference, wall.met) == (3.0, 1.3 * 2.0 + 1, True)
    assert (cpu.ours, cpu.reference) == (2.0, 1.3 * 1.5 + 1)
