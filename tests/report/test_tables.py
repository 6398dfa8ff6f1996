"""Numbers with units, and tables."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

import undergrowth as ug
from undergrowth.report.tables import (
    amount,
    cost_table,
    count,
    duration,
    energy,
    operations,
    other_scores,
    rate,
    score,
    size,
    stackable_table,
    table,
)


@pytest.mark.parametrize(
    ("formatted", "text"),
    [
        (size(0), "0 B"),
        (size(1), "1 B"),
        (size(999), "999 B"),
        (size(999.6), "1 kB"),
        (size(20_464), "20.5 kB"),
        (size(999_999), "1 MB"),
        (size(3_100_000_000), "3.1 GB"),
        (size(None), "–"),
        (size(0.4), "0.4 B"),
        (size(1e25), "10000000 EB"),
        (operations(6_635_520.0), "6.64 MFLOP"),
        (operations(math.nan), "–"),
        (energy(0.0449), "44.9 mJ"),
        (energy(98.04), "98 J"),
        (energy(123_456), "123 kJ"),
        (duration(0.0106), "10.6 ms"),
        (duration(0), "0 s"),
        (duration(59.96), "1 min 00 s"),
        (duration(3599.7), "1 h 00 min"),
        (duration(100_000), "1 d 03 h"),
        (duration(math.inf), "–"),
        (score(0.91364), "0.9136"),
        (score(None), "–"),
        (score(1e30), "1e+30"),
        (count(50_000), "50 000"),
        (rate(464.2), "464 /s"),
        (amount(-2500, "J"), "-2.5 kJ"),
        (amount(1e-12, "s"), "0 ns"),
    ],
)
def test_units(formatted: str, text: str) -> None:
    assert formatted == text


def test_markup_in_cells_is_not_interpreted() -> None:
    screen = Console(width=60, record=True, file=io.StringIO())
    screen.print(table(("name", "value"), [("[red]", None), ("x", 3)], right=(1,)))
    assert "[red]" in screen.export_text()


@pytest.mark.parametrize("width", [30, 20])
def test_a_stackable_table_has_two_lines_a_row_in_a_narrow_terminal(width: int) -> None:
    built = stackable_table(("name", "mean", "spread"), [("one", "1.25 ms", "0.5 ms")], ((0,), (1, 2)), right=(1, 2))
    screen = Console(width=width, file=io.StringIO())
    screen.print(built)
    assert isinstance(screen.file, io.StringIO)
    lines = [" ".join(line.split()) for line in screen.file.getvalue().splitlines()]
    narrow = ["mean", "name spread", "one 1.25 ms", "0.5 ms"]
    assert [line for line in lines if line and "─" not in line] == (
        ["name mean spread", "one 1.25 ms 0.5 ms"] if width == 30 else narrow
    )


def printed(built: RenderableType, width: int) -> list[str]:
    screen = Console(width=width, file=io.StringIO())
    screen.print(built)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [36, 40, 48, 60, 70])
def test_no_number_is_broken_in_a_narrow_terminal(width: int) -> None:
    cells = ("device-000", "a class of devices", "0.8542", "25.4 MFLOP", "16.6 ms ± 7.9 ms")
    built = table(("device", "class", "accuracy", "computed work", "time of a round"), [cells], right=(2, 3, 4))
    lines = printed(built, width)
    assert max(map(len, lines)) <= width
    for number in ("device-000", "0.8542", "25.4 MFLOP", "16.6 ms", "7.9 ms", "accuracy"):
        assert any(number in line for line in lines), f"{number} is broken in {lines}"


def test_a_table_that_is_too_wide_has_a_paragraph_for_each_row() -> None:
    built = table(("run", "last\nbest", "state"), [("a-long-name", "0.5\n0.75", "done"), ("b", "–\n–", "")], right=(1,))
    assert printed(built, 17) == ["a-long-name", "  last 0.5;", "  best 0.75;", "  state done", "b", "  last –; best –"]


def test_scores_of_other_models_are_those_of_the_last_round_that_has_some() -> None:
    history = [{"round": 1, "accuracy/a": 0.1, "accuracy/b": 0.2}, {"round": 2, "accuracy/b": 0.25}, {"round": 3}]
    assert other_scores(history) == [("accuracy/b", "0.2500")]
    assert other_scores([]) == []


def test_the_bytes_of_a_tree_are_called_those_of_all_links(tmp_path: Path) -> None:
    run = ug.run(model="logistic", clients=4, rounds=1, topology="tree:2x2", out=tmp_path, progress=False)
    below_root = sum(row.bytes_down for row in run.ledger.rows() if row.parent == "server")
    assert run.ledger.bytes_down - sum(device["bytes_down"] for device in run.clients) == below_root > 0
    assert any("sent down, all links" in line for line in printed(cost_table(run.summary), 60))
