"""The tables of the package: every cell at every scale is a valid experiment."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from undergrowth.core import check_options
from undergrowth.data import describe
from undergrowth.data.partition import parse_rule
from undergrowth.learning import build_sampler, build_selector
from undergrowth.models import builder
from undergrowth.reproduce import SCALES, load_tables
from undergrowth.reproduce.data_paths import DataPaths
from undergrowth.reproduce.jobs import plan_cell
from undergrowth.reproduce.orderings import check_orderings
from undergrowth.reproduce.pruned_models import METRICS as PRUNED
from undergrowth.reproduce.table import Raw
from undergrowth.reproduce.table_cells import build_cells
from undergrowth.runs import Store
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.method_builder import build_method
from undergrowth.sweeps.jobs import RunIndex

EXPECTED = [
    "figure-2.4", "3.2", "3.3", "4.1", "4.3", "4.4", "4.5", "4.7", "figure-4.7", "4.8", "4.9", "figure-4.9",
    "figure-4.10", "figure-4.11", "5.4", "5.7", "5.8", "5.9", "5.10", "figure-5.10", "5.11", "5.12", "6.3", "6.4",
    "6.6", "6.7", "6.8", "6.9", "6.10", "figure-6.12", "7.1", "figure-7.1", "figure-7.2", "figure-7.3",
    "figure-7.4", "figure-7.5", "A.2", "A.3", "A.4", "A.5", "fair-1", "fair-2", "fair-3", "fair-4", "fair-5",
    "har-2", "har-3", "tree-asynchrony", "tree-cohorts", "tree-distance", "tree-residuals",
]  # fmt: skip
METRIC = (
    r"accuracy(/.+)?|final( (accuracy|macro_f1)(/ensemble)?)?|class \d+|efficiency|metadata|down|up|traffic( GB)?|"
    r"total GB|forward passes|computing|(own|all) data (\d|root)|"
    r"tier reft-\d+|(relative )?accuracy of \S+, (((best |worst )?(mean|variance))|below zero)"
)
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
        # Many cells have the same model. Those of Hugging Face are not on every machine.
        if key not in CHECKED_MODELS and not model.name.startswith("hf:"):
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
        for raw in cell.experiments:
            check_experiment(raw)
        assert cell.metric in PRUNED or re.fullmatch(METRIC, cell.metric)
    if scale == "smoke":
        assert all(raw["data"]["name"] == "digits" for cell in cells for raw in cell.experiments)


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
    values = {place: {0: figure.mean} for place, figure in table.figures.items()}
    for ordering in check_orderings(table, values):
        assert ordering.gap == ordering.published_gap and (ordering.held or not table.published or table.is_figure)
        assert not ordering.broken or "contradicts the published conclusion" in " ".join(table.notes), ordering


def runs_of(name: str, scale: str) -> set[str]:
    """The runs of a table, with up to four seeds, by the keys of their jobs."""
    table, run = load_tables()[name], {"device": "cpu"}
    with closing(Store("runs", create=True)) as store:
        index = RunIndex(store)
        plans = [
            plan_cell(cell, table.scale(scale).seeds, run, EveryPath(), index) for cell in build_cells(table, scale)
        ]
    return {job.key for plan in plans for job in plan.jobs}


class EveryPath(DataPaths):
    """As if all data sets were on this machine."""

    def __init__(self) -> None:
        super().__init__({})

    def missing(self, raw: Raw) -> set[str]:
        return set()


@pytest.mark.parametrize(
    ("view", "table"),
    [
        ("4.4", "4.3"),
        ("4.8", "4.5"),
        ("4.8", "4.7"),
        ("5.8", "5.7"),
        ("figure-6.12", "6.8"),
        ("figure-7.2", "figure-7.3"),
        ("figure-7.4", "figure-7.3"),
        ("figure-7.5", "figure-7.3"),
        ("fair-4", "fair-1"),
        ("fair-5", "fair-2"),
        ("har-3", "har-2"),
    ],
)
def test_views_have_no_runs_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, view: str, table: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert runs_of(view, "full") <= runs_of(table, "full")


@pytest.mark.parametrize("scale", ["full", "small"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("figure-2.4", "4.3"), ("4.7", "4.5"), ("figure-4.10", "4.5"), ("figure-4.11", "4.5"), ("5.9", "5.11"),
        ("5.12", "5.11"), ("figure-5.10", "5.4"), ("6.4", "6.8"), ("6.6", "6.8"), ("6.7", "6.6"), ("3.3", "3.2"),
        ("A.2", "3.2"), ("A.3", "3.2"),
    ],
)  # fmt: skip
def test_tables_share_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: str, other: str, scale: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert runs_of(one, scale) & runs_of(other, scale)


def test_table_6_4_has_only_one_row_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretrainings of equal settings are the same run, whatever the number of devices of the table."""
    monkeypatch.chdir(tmp_path)
    own = runs_of("6.4", "small") - runs_of("6.8", "small")
    assert len(own) == load_tables()["6.4"].scale("small").seeds and all('"cifar100"' in key for key in own)


def test_chapter_4_is_not_augmented() -> None:
    for name in EXPECTED:
        augmented = {
            "augment" in raw["data"] for cell in build_cells(load_tables()[name], "full") for raw in cell.experiments
        }
        if name.removeprefix("figure-")[0] in "24":
            assert augmented == {False}, name


def test_a_sum_over_ten_classes_is_ten_times_their_mean() -> None:
    """Table 5.9 takes the runs of some rows for others."""
    weights = {cell.place: cell.raw["method"] for cell in build_cells(load_tables()["5.9"], "full")}
    for row in ("beta 0.01", "beta 0.1", "beta 0.5", "beta 1"):
        for column, classes in (("CIFAR-10", 10), ("GSC", 35)):
            mean, read_as_sum = (
                each["beta"] * (classes if each.get("prototype_reduction") == "sum" else 1)
                for each in (weights[row, column], weights[f"{row}, sum", column])
            )
            assert read_as_sum == pytest.approx(classes * mean)


@pytest.mark.parametrize("scale", ["full", "small"])
@pytest.mark.parametrize("name", ["4.5", "4.7", "4.8"])
def test_stragglers_train_for_a_tenth_of_the_epochs(name: str, scale: str) -> None:
    for cell in build_cells(load_tables()[name], scale):
        reduced = cell.raw["method"].get("reduced_epochs")
        assert reduced is None or 10 * reduced == cell.raw["train"]["epochs"]


@pytest.mark.parametrize("name", ["6.4", "6.6", "6.7", "6.8", "6.9", "6.10", "figure-6.12"])
def test_all_rows_but_those_without_have_both_steps_of_pretraining(name: str) -> None:
    for scale in SCALES:
        for cell in build_cells(load_tables()[name], scale):
            steps = [[each.raw["method"] for each in start.chain] for start in cell.starts]
            expected = [] if "without" in cell.row.lower() else [[{"name": "central"}, {"name": "fedavg"}]]
            assert steps[:1] == expected, cell.name
            for start in cell.starts:  # the last step is a round on the partition of the runs
                assert start.raw["train"]["rounds"] == 1
                if cell.raw["method"]["name"] != "central":
                    assert start.raw["data"] == cell.raw["data"]


@pytest.mark.parametrize("scale", ["full", "small"])
def test_dirichlet_partitions_of_shis_tables_are_capped(scale: str) -> None:
    """The source builds on FedML, whose rule that is."""
    tables = [table for table in load_tables().values() if table.source.startswith("Shi")]
    raws = [raw for table in tables for cell in build_cells(table, scale) for raw in cell.experiments]
    rules = {raw["data"].get("partition", "") for raw in raws}
    dirichlet = {rule for rule in rules if rule.startswith("dirichlet")}
    assert {"dirichlet:0.1:capped", "dirichlet:0.5:capped"} <= dirichlet
    assert all(rule.endswith(":capped") for rule in dirichlet)


def test_ladders_have_the_counts_of_table_5_5() -> None:
    counts = {"wrn-10-1": 6, "wrn-16-1": 4, "wrn-22-1": 4, "wrn-28-1": 4, "wrn-34-1": 2}
    for name in ("5.7", "5.11"):
        raws = [raw for cell in build_cells(load_tables()[name], "full") for raw in cell.experiments]
        ladders = [parse_experiment(raw).model.counts for raw in raws]
        assert counts in ladders and all(each in ({}, counts) for each in ladders)


@pytest.mark.parametrize("name", EXPECTED)
def test_notes_name_what_shis_text_does_not_state(name: str) -> None:
    table = load_tables()[name]
    if not table.source.startswith("Shi"):
        return
    raws = [raw for cell in build_cells(table, "full") for raw in cell.experiments]
    notes = " ".join(table.notes)
    assert not any(raw["train"].get("drop_last") for raw in raws) or "smaller batch of an epoch is dropped" in notes
    assert not any("augment" in raw["data"] for raw in raws) or "cropped, flipped and cut out" in notes
