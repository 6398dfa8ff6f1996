"""The tables of the package: every cell at every scale is a valid experiment."""

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
from undergrowth.reproduce import SCALES, load_tables
from undergrowth.reproduce.results import check_orderings
from undergrowth.reproduce.table_cells import build_cells
from undergrowth.runs.builders import build_method
from undergrowth.runs.config import parse_experiment

EXPECTED = ["4.3", "4.5", "4.7", "4.9", "5.4", "5.7", "5.11", "5.12", "6.3", "6.8", "6.10"]
CHECKED_MODELS: set[str] = set()


def check_experiment(raw: dict[str, Any]) -> None:
    """Make the checks that a run makes before it reads data."""
    described = parse_experiment(raw)
    train = described.train_settings()
    build_sampler(described.train.sampler, train)
    build_selector(described.train.selector)
    method = build_method(described.method.name, described.method.options)
    check_options(method, "method")
    method.check()
    entry = describe(described.data.name)
    assert set(described.data.options) <= set(entry.options)
    parse_rule(described.data.partition)
    if described.public.name:
        assert set(described.public.options) <= set(describe(described.public.name).options)
    shape, classes = entry.shape or (3, 32, 32), entry.classes or 10
    for model in (described.model, *described.model.ladder):
        key = f"{model.name} {shape} {classes} {model.options}"
        if key not in CHECKED_MODELS:  # many cells have the same model
            builder(model.name, shape, classes, **model.options)
            CHECKED_MODELS.add(key)


def test_all_tables_are_in_the_guide() -> None:
    assert list(load_tables()) == EXPECTED
    guide = (Path(__file__).parents[2] / "docs/guides/reproduce.md").read_text(encoding="utf-8")
    assert [table.name for table in load_tables().values() if f"\n| {', '.join(table.tables)} |" not in guide] == []


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPECTED)
def test_every_cell_is_valid(name: str, scale: str) -> None:
    cells = build_cells(load_tables()[name], scale)
    for cell in cells:
        for raw in (cell.raw, *cell.starts):
            check_experiment(raw)
        assert re.fullmatch(r"accuracy(/.+)?|final|class \d+", cell.metric)
    if scale == "smoke":
        assert all(raw["data"]["name"] == "digits" for cell in cells for raw in (cell.raw, *cell.starts))


@pytest.mark.parametrize("name", EXPECTED)
def test_smaller_scales_do_less_work(name: str) -> None:
    table = load_tables()[name]
    sizes = {scale: {cell.name for cell in build_cells(table, scale)} for scale in SCALES}
    assert sizes["small"] <= sizes["full"] and sizes["smoke"] <= sizes["full"]

    def rounds(scale: str) -> list[int]:
        experiments = {cell.name: cell.raw for cell in build_cells(table, scale)}
        return [experiments[name]["train"]["rounds"] for name in sorted(sizes["smoke"] & sizes["small"])]

    assert all(less <= more for less, more in zip(rounds("smoke"), rounds("small"), strict=True))
    assert table.scale("full").data == {} and table.scale("full").experiment == {}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_published_figures_support_the_published_orderings(name: str) -> None:
    """If not, a note of the table says so."""
    table = load_tables()[name]
    for ordering in check_orderings(table, table.figures):
        assert ordering.held and ordering.gap == ordering.published_gap
        assert not ordering.broken or "contradicts the published conclusion" in " ".join(table.notes), ordering
