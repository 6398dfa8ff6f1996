"""The pages of a table: its settings, the notes of its scale, the numbers and the plots."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.packed_pages import figures_of
from tests.reproduce.example_table import example_table
from undergrowth.reproduce import TableResult
from undergrowth.reproduce.catalogue import find_table
from undergrowth.reproduce.html_page import draw, render_html
from undergrowth.reproduce.markdown import render_page
from undergrowth.reproduce.page_content import ordering_lines
from undergrowth.reproduce.results import CellResult, Cost
from undergrowth.reproduce.settings import settings_lines
from undergrowth.reproduce.table import Table
from undergrowth.reproduce.table_cells import build_cells

ONE_CELL_IN_EACH_ROW = (("FedAvg", "Accuracy, %"), ("FedProx", "Traffic, GB"))


def made_up(table: Table, scale: str = "small", seeds: int = 2) -> TableResult:
    """A result with invented values. Its runs started from the second alternative of their pretraining."""
    cells = []
    for place, cell in enumerate(build_cells(table, scale)):
        values = tuple(40.0 + place + seed for seed in range(seeds))
        start = cell.starts[1] if cell.starts else None
        published = None if start else table.figures.get(cell.place)
        costs = (Cost(1e9, 1e6),) * seeds
        curve = tuple((at, 10.0 * at) for at in (1, 2, 3))
        cells.append(CellResult(cell, values, ("run",) * seeds, costs, tuple(range(seeds)), start, published, curve))
    return TableResult(table, scale, tuple(cells))


def test_settings_are_those_of_the_experiments(table: Table) -> None:
    lines = settings_lines(made_up(table).cells)
    assert lines == [
        "all cells, unless a line below says otherwise: data digits, data.clients 4, data.holdout 0, "
        "data.partition iid, model logistic, train.rounds 3",
        "pictures, even: data cifar10, data.train_samples 100",
        "FedAvg: method fedavg",
        "FedProx: method fedprox",
        "FedAvg, pretrained: method fedavg, pretraining A",
        "FedProx, pretrained: method fedprox, method.mu 0.1, pretraining A",
        "FedProx/digits, even: method.mu 0.1",
        "FedProx/pictures, even: method.mu 1",
        "pretraining A: data digits, method central, model logistic, train.rounds 3",
    ]


def test_a_cell_that_has_the_settings_of_its_column_does_not_lose_them() -> None:
    """The row says otherwise, so the line of the cell repeats what the column has."""
    lines = settings_lines([CellResult(cell) for cell in build_cells(find_table("3.3"), "small")])
    assert "CIFAR-10: FedAdam: method fedadam, method.server_lr 0.001" in lines
    assert "CIFAR-10: FedAdam/FedNCM: method fedncm, method.server_lr none" in lines
    assert not any(" method none" in line for line in lines)


def test_a_column_without_a_usual_value_has_no_line_about_it() -> None:
    lines = settings_lines([CellResult(cell) for cell in build_cells(find_table("fair-2"), "small")])
    assert not any(line.startswith("Central, %:") for line in lines)  # its methods differ, and it has one


def test_a_page_has_the_notes_of_its_scale_only() -> None:
    scales = {
        "full": {"seeds": 4, "notes": ["for many hours"]},
        "small": {"seeds": 2, "notes": ["in minutes"]},
        "smoke": {"seeds": 1},
    }
    page = render_page(made_up(example_table(scales=scales)), "undergrowth reproduce 9.1", "cpu")
    assert "- in minutes" in page and "- all figures are invented" in page and "for many hours" not in page
    assert "| FedAvg | 40.50 ± 0.71 / 50.50 ± 1.50 | 41.50 ± 0.71 / 40.00 |" in page
    assert "| FedAvg, pretrained | 44.50 ± 0.71 / – |" in page  # the published start was another one
    assert "- pretrained on digits, because there was no drawings; published numbers are those for digits" in page
    assert "- all cells, unless a line below says otherwise: data digits," in page and "by round" not in page


def test_a_page_says_which_cells_need_more_seeds(table: Table) -> None:
    result = made_up(table)
    assert "below two standard errors" not in render_page(result, "", "cpu")  # the gaps are the same for both seeds
    one_seed = made_up(table, seeds=1)
    assert "these cells get 4 seeds: FedAvg; FedProx; " in render_page(one_seed, "", "cpu")
    assert "standard errors" not in render_page(made_up(table, "smoke", seeds=1), "", "cpu")


def test_a_page_counts_the_orderings_that_were_not_run(table: Table) -> None:
    result = made_up(table)
    plain = [each for each in result.cells if "pretrained" not in each.cell.row]
    page = render_page(replace(result, cells=tuple(plain)), "", "cpu")
    assert "- FedProx > FedAvg: held, 4 of 4 seeds" in page and "“a proximal term helps”" in page
    assert "- 1 further ordering needs cells that were not run\n" in page and "pretraining helps" not in page
    nothing = replace(result, cells=tuple(plain[:1]))
    assert ordering_lines(nothing, claims=False) == ["2 orderings need cells that were not run"]


def test_sides_that_are_exactly_equal_are_no_refutation(table: Table) -> None:
    result = made_up(table)
    equal = replace(result, cells=tuple(replace(each, values=(0.0, 0.0)) for each in result.cells))
    line = "FedProx {} FedAvg: equal, nothing to compare, 4 seeds in 2 columns; published: +1.75, 1 of 2 columns"
    assert line.format(">") in render_page(equal, "", "cpu") and line.format("&gt;") in render_html(equal, "", "cpu")


def test_costs_are_one_column_if_columns_are_figures_of_the_same_runs() -> None:
    same = {"data": {"name": "digits", "partition": "iid"}}
    columns = {"Accuracy, %": same, "Traffic, GB": {**same, "metric": "traffic"}}
    result = made_up(example_table(columns=columns, cells=[], orderings=[]))
    first, *others = result.cells
    more_seeds = replace(first, costs=(Cost(1e9, 1e6), Cost(2e9, 1e6), Cost(3e9, 1e6)))  # than the other columns
    page = render_page(replace(result, cells=(more_seeds, *others)), "", "cpu")
    costs = page.partition("## Costs")[2].partition("## Settings")[0]
    assert "|  | all columns |\n|---|---|\n| FedAvg | 2 GFLOP, 1 MB |\n| FedProx | 1 GFLOP, 1 MB |\n" in costs
    one_each = replace(result, cells=tuple(each for each in result.cells if each.cell.place in ONE_CELL_IN_EACH_ROW))
    assert "|  | Accuracy, % | Traffic, GB |\n" in render_page(one_each, "", "cpu").partition("## Costs")[2]


def test_costs_have_all_columns_if_these_are_different_runs(table: Table) -> None:
    costs = render_page(made_up(table), "", "cpu").partition("## Costs")[2]
    assert "|  | digits, even | pictures, even |\n|---|---|---|\n| FedAvg | 1 GFLOP, 1 MB | 1 GFLOP, 1 MB |" in costs


@pytest.mark.parametrize(("kind", "count"), [("rounds", 2), ("columns", 1), ("bars", 1)])
def test_plots(kind: str, count: int) -> None:
    result = made_up(example_table(plot={"kind": kind, "x": "data"}))
    figures = draw(result)
    assert len(figures) == count
    first = figures[0]["data"][0]
    assert first["name"] == "FedAvg"
    if kind == "rounds":
        assert (first["x"], first["y"]) == ([1, 2, 3], [10.0, 20.0, 30.0])
    else:
        assert (first["x"], first["y"]) == (["digits, even", "pictures, even"], [40.5, 41.5])
        assert (
            first["type"] == ("bar" if kind == "bars" else "scatter")
            and figures[0]["layout"]["xaxis"]["type"] == "category"
        )
    names = [trace["name"] for trace in figures[0]["data"]]
    assert ("FedAvg, published" in names) == (kind == "columns")


def test_a_figure_shows_its_curves_as_numbers_too() -> None:
    figure = example_table(tables=["figure-9.3"], published={})
    result = made_up(figure)
    page = render_page(result, "", "cpu")
    assert page.startswith("# Figure 9.3: ") and "## digits, even: accuracy by round" in page
    assert "|  | round 1 | round 2 | round 3 |" in page and "| FedAvg | 10.00 | 20.00 | 30.00 |" in page
    assert "not published" in page


def test_the_html_page_has_the_same_numbers_and_the_plots(table: Table, tmp_path: Path) -> None:
    page = render_html(made_up(table), "undergrowth reproduce 9.1", "cpu")
    figures = figures_of(page)
    assert (
        len(figures) == 2 and "50.50 ± 1.50" in page and "FedProx &gt; FedAvg: held, 4 of 4 seeds in 2 columns" in page
    )
    assert "all cells, unless a line below says otherwise: data digits," in page
