"""The tables that are shipped: every cell of every scale is an experiment that could be run, were its data there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from undergrowth.core import check_options
from undergrowth.data import describe
from undergrowth.data.partition import parse_rule
from undergrowth.learning import build_sampler, build_selector
from undergrowth.models import builder
from undergrowth.reproduce import SCALES, tables
from undergrowth.reproduce.cells import cells
from undergrowth.reproduce.findings import verdicts
from undergrowth.runs.builders import build_method
from undergrowth.runs.config import parse_experiment

EXPECTED = ["4.3", "4.5", "4.7", "4.9", "5.4", "5.7", "5.11", "5.12", "6.3", "6.8", "6.10"]


def could_run(tree: dict[str, Any]) -> None:
    """Everything that a run refuses before it looks at data."""
    settings = parse_experiment(tree)
    train = settings.train_settings()
    build_sampler(settings.train.sampler, train)
    build_selector(settings.train.selector)
    method = build_method(settings.method.name, settings.method.options)
    check_options(method, "method")
    method.check()
    entry = describe(settings.data.name)
    assert set(settings.data.options) <= set(entry.options)
    parse_rule(settings.data.partition)
    if settings.public.name:
        assert set(settings.public.options) <= set(describe(settings.public.name).options)
    shape, classes = entry.shape or (3, 32, 32), entry.classes or 10
    builder(settings.model.name, shape, classes, **settings.model.options)
    for rung in settings.model.ladder:
        builder(rung.name, shape, classes, **rung.options)


def test_they_are_all_there() -> None:
    assert list(tables()) == EXPECTED
    guide = (Path(__file__).parents[2] / "docs/guides/reproduce.md").read_text(encoding="utf-8")
    assert [table.name for table in tables().values() if f"\n| {', '.join(table.tables)} |" not in guide] == []


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPECTED)
def test_every_cell_could_be_run(name: str, scale: str) -> None:
    found = cells(tables()[name], scale)
    for cell in found:
        for tree in (cell.tree, *cell.starts):
            could_run(tree)
        assert re.fullmatch(r"accuracy(/.+)?|final|class \d+", cell.metric)
    if scale == "smoke":
        assert all(tree["data"]["name"] == "digits" for cell in found for tree in (cell.tree, *cell.starts))


@pytest.mark.parametrize("name", EXPECTED)
def test_scales_take_less_and_less(name: str) -> None:
    table = tables()[name]
    sizes = {scale: {cell.name for cell in cells(table, scale)} for scale in SCALES}
    assert sizes["small"] <= sizes["full"] and sizes["smoke"] <= sizes["full"]

    def work(scale: str) -> list[int]:
        trees = {cell.name: cell.tree for cell in cells(table, scale)}
        return [trees[name]["train"]["rounds"] for name in sorted(sizes["smoke"] & sizes["small"])]

    assert all(less <= more for less, more in zip(work("smoke"), work("small")))
    assert table.scale("full").data == {} and table.scale("full").settings == {}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_print_bears_its_own_conclusions_out(name: str) -> None:
    """The published figures, taken for ours, must hold what they are said to show; where not, a note says so."""
    table = tables()[name]
    figures = {(row, column): table.figure(row, column) for row in table.rows for column in table.columns}
    for verdict in verdicts(table, {place: figure for place, figure in figures.items() if figure}):
        assert verdict.held and verdict.gap == verdict.published_gap
        assert not verdict.broken or "against its own conclusion" in " ".join(table.notes), verdict
