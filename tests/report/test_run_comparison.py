"""`undergrowth compare` in terminals of different widths: a column per run or a row per run, and nothing is cut off."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from undergrowth.core import Metric
from undergrowth.report.run_comparison import column_per_run, reached_figures, row_per_run, total_figures
from undergrowth.report.run_record import RunRecord

MAIN = Metric("accuracy")
COSTS = {"simulated_seconds": 7325.0, "bytes_down": 480_000, "bytes_up": 120_000, "flops": 164e6, "joules": 1.04}


def made_up(number: int, status: str = "done") -> RunRecord:
    """A run whose learning rate is the one of no other run."""
    settings = {"method": {"name": "a-method-with-a-long-name", "temperature": 0.5}, "train": {"lr": number / 100}}
    row: dict[str, Any] = {
        "method": "a-method-with-a-long-name", "status": status, "experiment": {"settings": settings, "objects": {}},
        "summary": {"accuracy": 0.5 + number / 100, **COSTS}, "seed": 0,
    }  # fmt: skip
    rounds = [{"round": 1, "accuracy": 0.9, **COSTS}, {"round": 2, "accuracy": 0.5, **COSTS}]
    return RunRecord(f"20260102-101500-a-method-with-a-long-name-{number:04d}", row, rounds, [], "")


def screen(width: int) -> Console:
    return Console(width=width, file=StringIO(), markup=False, highlight=False)


def shown(on: Console, what: Any) -> list[str]:
    on.print(what)
    assert isinstance(on.file, StringIO)
    return [line.rstrip() for line in on.file.getvalue().splitlines()]


@pytest.mark.parametrize(("width", "runs", "fits"), [(80, 2, True), (80, 3, True), (80, 4, False), (200, 9, True)])
def test_a_column_per_run_if_costs_fit(width: int, runs: int, fits: bool) -> None:
    on = screen(width)
    ids = [made_up(number).run for number in range(1, runs + 1)]
    rows = [("run", *ids), ("time", *["2 h 02 min"] * runs), ("computing time of devices", *["164 MFLOP"] * runs)]
    built = column_per_run([f"run {number}" for number in range(runs)], rows, on)
    assert (built is not None) == fits
    if built:
        lines = shown(on, built)
        times = next(line for line in lines if line.startswith(" time"))
        assert max(map(len, lines)) <= width and times.count("2 h 02 min") == runs
        named = next(line for line in lines if line.startswith(" run  "))
        assert [each[-5:] for each in named.split()[1:]] == [each[-5:] for each in ids]  # the middle is left out


def test_values_that_fit_are_not_shortened() -> None:
    on = screen(80)
    assert " run  a" in shown(on, column_per_run(["x"], [("run", "a" * 60)], on))[3] and "…" not in on.file.getvalue()


def test_many_runs_have_a_row_each() -> None:
    records = [*map(made_up, range(1, 20)), made_up(20, "killed")]
    on = screen(80)
    lines = shown(on, row_per_run(records, *total_figures(records, MAIN), on))
    assert max(map(len, lines)) <= 80 and len(lines) == 4 + 2 * len(records) + 1
    assert lines[1].split() == ["run", "accuracy", "rounds", "down", "computed"]
    assert lines[2].split() == ["best", "time", "up", "energy"]
    assert lines[4].split()[1:] == ["lr", "0.01", "0.5100", "2", "480", "kB", "164", "MFLOP"]
    assert lines[5].split()[1:] == ["0.9000", "2", "h", "02", "min", "120", "kB", "1.04", "J"]
    assert lines[5].split()[0].endswith("-0001")
    assert "2, killed" in lines[-3] and "…" in lines[-2]


def test_costs_until_a_value_is_reached_have_a_row_each() -> None:
    records = [made_up(1), made_up(2)]
    on = screen(60)
    lines = shown(on, row_per_run(records, *reached_figures([records[0].rounds[0], None]), on, "to reach it"))
    assert lines[0] == "to reach it" and max(map(len, lines)) <= 60
    assert lines[5].split()[-4:] == ["480", "kB", "164", "MFLOP"] and lines[8].split()[-3:] == ["–", "–", "–"]
