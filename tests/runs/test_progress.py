"""The progress of a run without a terminal: a line a round, but not too many."""

from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.runs.conftest import Run
from undergrowth.core import Metric
from undergrowth.runs.progress import ProgressLines


def print_ten_rounds(seconds_a_round: float, evaluate_every: int = 1) -> None:
    now = [0.0]
    lines = ProgressLines(clock=lambda: now[0])
    for number in range(1, 11):
        now[0] += seconds_a_round
        root = SimpleNamespace(done=number == 10)
        federation = SimpleNamespace(driver=SimpleNamespace(root=root))
        run: Any = SimpleNamespace(run="id", federation=federation, fraction=lambda row: row["round"] / 10)
        run.metric, run.is_evaluated = Metric("accuracy"), lambda row: row["round"] % evaluate_every == 0
        lines.on_round({"round": number, "accuracy": 0.5, "loss": 1.0, "wall_seconds": now[0]}, run)


def rounds_printed(seconds_a_round: float, capsys: pytest.CaptureFixture[str]) -> list[int]:
    print_ten_rounds(seconds_a_round)
    return [int(number) for number in re.findall(r"id: round (\d+) of 10, accuracy 0.500", capsys.readouterr().err)]


def test_slow_rounds_have_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert rounds_printed(1.5, capsys) == list(range(1, 11))


def test_fast_rounds_have_a_line_a_second_and_one_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert rounds_printed(0.25, capsys) == [1, 5, 9, 10]
    assert rounds_printed(0.001, capsys) == [1, 10]


def test_a_round_that_was_not_evaluated_shows_no_figures_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    print_ten_rounds(2.0, evaluate_every=5)
    lines = capsys.readouterr().err.splitlines()
    assert lines[3:5] == ["id: round 4 of 10, 8 s", "id: round 5 of 10, accuracy 0.500, loss 1.000, 10 s"]


def test_a_run_prints_its_first_and_last_round_on_standard_error(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(rounds=3, progress=True)
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert lines[0].startswith(f"{result.run}: round 1 of 3, accuracy ") and not printed.out
    assert lines[-1].startswith(f"{result.run}: round 3 of 3, accuracy {result.accuracy:.3f}, loss {result.loss:.3f}, ")


def test_a_run_can_be_quiet(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run(rounds=1, progress=False)
    assert capsys.readouterr().err == ""


def test_a_run_goes_on_when_nobody_reads_its_progress_any_more(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Closed())
    assert len(run(rounds=3, progress=True).history) == 3


@pytest.mark.parametrize("stream", [None, SimpleNamespace(write=lambda text: None, flush=lambda: None)])
def test_standard_error_may_be_missing_or_no_file(stream: object, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program without a console, and in notebooks."""
    monkeypatch.setattr(sys, "stderr", stream)
    assert len(run().history) == 3
