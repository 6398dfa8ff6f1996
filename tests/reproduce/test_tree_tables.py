"""The tables about trees: what their numbers are, and that their rows differ only in what they compare."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from statistics import fmean

import pytest

import undergrowth as ug
from undergrowth.core import RunError
from undergrowth.reproduce import find_table
from undergrowth.reproduce.markdown import render_page
from undergrowth.reproduce.metrics import measure
from undergrowth.reproduce.reproduction import count_runs
from undergrowth.reproduce.results import CellResult, TableResult
from undergrowth.reproduce.settings import settings_lines
from undergrowth.reproduce.table_cells import build_cells
from undergrowth.runs import Store
from undergrowth.topology import build_topology

WRITERS = [f"device-{number:03d}" for number in range(539)]
EMPLOYEES = 289  # writers of MNIST with numbers below 2100; they come first


def test_accuracy_by_distance(tmp_path: Path) -> None:
    small = {"clients": 8, "model": "logistic", "rounds": 2, "out": tmp_path, "progress": False}
    tree = ug.run("bhfl", topology="tree:2x2x2", partition="classes:3", **small)
    star = ug.run("fedavg", **small)
    kept = ug.run("bhfl", **small)
    with closing(Store(tmp_path)) as store:
        by_distance = [100 * row["score"] for row in tree.tree["distances"]]
        assert [measure(store, tree.run, f"own data {links}") for links in (0, 1, 2, 3)] == by_distance
        assert measure(store, tree.run, "own data root") == by_distance[3]
        edges = [100 * row["score"] for row in tree.tree["nodes"] if row["node"].startswith("edge")]
        assert len(edges) == 4 and measure(store, tree.run, "all data 1") == pytest.approx(fmean(edges))
        assert measure(store, tree.run, "all data root") == pytest.approx(100 * tree.accuracy)
        with pytest.raises(RunError, match="has no 'own data 4'"):
            measure(store, tree.run, "own data 4")
        # All devices of FedAvg use the root's model; in a star of B-HFL they have their own.
        mean = 100 * fmean(device["accuracy"] for device in star.clients)
        assert measure(store, star.run, "own data 1") == measure(store, star.run, "own data root")
        assert measure(store, star.run, "own data 1") == pytest.approx(mean)
        assert measure(store, star.run, "all data root") == pytest.approx(100 * star.accuracy)
        own = 100 * fmean(device["accuracy"] for device in kept.clients)
        assert measure(store, kept.run, "own data 0") == pytest.approx(own)
        assert measure(store, kept.run, "own data root") == measure(store, kept.run, "own data 1") != own


@pytest.mark.parametrize("scale", ["full", "small"])
def test_cohorts_of_all_rows_train_equally_often(scale: str) -> None:
    trainings: dict[str, set[float]] = {}
    for cell in build_cells(find_table("tree-cohorts"), scale):
        per_ask = cell.raw["method"].get("rounds_per_level", 1)
        work = round(cell.raw["train"]["rounds"] * per_ask * cell.raw["train"]["sample"], 6)
        trainings.setdefault(cell.column, set()).add(work)
    assert all(len(work) == 1 for work in trainings.values())


@pytest.mark.parametrize("name", ["tree-cohorts", "tree-residuals", "tree-asynchrony", "tree-distance"])
def test_the_regions_of_writers_are_the_two_collections(name: str) -> None:
    topologies = [cell.raw["topology"] for cell in build_cells(find_table(name), "small") if "Writers" in cell.column]
    trees = [build_topology(each, WRITERS) for each in topologies if each != "star"]
    assert trees
    for tree in trees:
        for node, children in tree.children.items():
            numbers = [int(child.removeprefix("device-")) for child in children if child not in tree.children]
            employees = node.startswith("employees")
            assert all((number < EMPLOYEES) == employees for number in numbers)


def test_columns_are_different_numbers_of_the_same_runs() -> None:
    for name, runs in (("tree-cohorts", 20), ("tree-residuals", 20), ("tree-asynchrony", 16), ("tree-distance", 12)):
        assert count_runs(find_table(name), "small") == runs


def test_a_page_without_published_numbers_has_no_place_for_them() -> None:
    table = find_table("tree-cohorts")
    cells = tuple(CellResult(cell, (50.0, 60.0), seeds=(0, 1)) for cell in build_cells(table, "small"))
    page = render_page(TableResult(table, "small", cells), "", "cpu")
    assert "The source has no numbers. Every cell: ours in per cent" in page and "published experiment" not in page
    assert "| One server, large cohorts | 55.00 ± 7.07 | 55.00 ± 7.07 |" in page


def test_a_page_has_one_line_for_all_columns_with_the_same_settings() -> None:
    cells = [CellResult(cell) for cell in build_cells(find_table("tree-residuals"), "small")]
    lines = settings_lines(cells)
    assert len(lines) == 1 + 2 + 5
    assert lines[1].startswith("Writers, own model; Writers, edge server; Writers, root, all data: data mnist")
    assert "topology 12 servers by name" in lines[1]
