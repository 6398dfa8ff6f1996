"""From a table to experiments: merging layers, patterns, replaced data; and the check of orderings."""

from __future__ import annotations

from contextlib import closing

import pytest
from pydantic import ValidationError

from tests.reproduce.example_table import example_table
from undergrowth.core import InputError
from undergrowth.reproduce import Table, find_table
from undergrowth.reproduce.data_paths import DataPaths
from undergrowth.reproduce.jobs import plan_cell
from undergrowth.reproduce.table import Figure, pair_sides
from undergrowth.reproduce.table_cells import build_cells
from undergrowth.runs import Store
from undergrowth.sweeps.jobs import RunIndex
from undergrowth.sweeps.layers import merge_layers


def test_later_layers_override_and_another_name_drops_the_options() -> None:
    base = {"data": {"name": "cifar10", "clients": 5, "train_samples": 9}, "method": {"name": "fedprox", "mu": 1}}
    assert merge_layers(base, {"method": {"mu": 2}})["method"] == {"name": "fedprox", "mu": 2}
    assert merge_layers(base, {"method": "fedavg"})["method"] == {"name": "fedavg"}
    assert merge_layers(base, {"data": "digits"})["data"] == {"name": "digits", "clients": 5}
    assert merge_layers({"data": {"clients": 5}}, {"data": "digits"})["data"] == {"name": "digits", "clients": 5}
    assert base["method"] == {"name": "fedprox", "mu": 1}


def test_the_cells_of_a_scale(table: Table) -> None:
    by_name = {cell.name: cell for cell in build_cells(table, "small")}
    assert len(by_name) == 6  # two of eight have no published figure
    assert by_name["FedProx/pictures, even"].raw["method"] == {"name": "fedprox", "mu": 1}
    assert by_name["FedProx/digits, even"].raw["method"] == {"name": "fedprox", "mu": 0.1}
    assert by_name["FedAvg/pictures, even"].raw["data"]["train_samples"] == 100
    assert table.figures["FedAvg", "digits, even"] == Figure(50.5, 1.5)
    first, second = by_name["FedAvg, pretrained/digits, even"].starts
    assert (first.raw["data"]["name"], second.raw["data"]["name"]) == ("npz", "digits")
    assert (first.source, second.source) == ("drawings", "digits") and first.raw["model"] == {"name": "logistic"}
    assert [cell.raw["train"]["rounds"] for cell in build_cells(table, "smoke")] == [2, 2, 2, 2]


def test_patterns_of_cells(table: Table) -> None:
    def names(pattern: str) -> list[str]:
        return [cell.name for cell in build_cells(table, "full", pattern)]

    assert names("fedavg") == ["FedAvg/digits, even", "FedAvg/pictures, even"]
    assert names("FedAvg*/*even") == [*names("FedAvg"), "FedAvg, pretrained/digits, even"]
    assert names("/pictures*") == ["FedAvg/pictures, even", "FedProx/pictures, even"]
    assert names("FedAvg | FedProx/digits*") == ["FedAvg/digits, even", "FedProx/digits, even"]
    with pytest.raises(InputError, match=r"--only 'FedSGD' matches no cell of table 9.1 at scale full.*rows FedAvg"):
        build_cells(table, "full", "FedSGD")


def test_settings_of_the_user_replace_those_of_a_table(table: Table) -> None:
    changes = {"train": {"rounds": 9}, "run": {"precision": "bf16"}}
    plain, changed = (build_cells(table, "small", "FedAvg*", each) for each in (None, changes))
    assert [cell.raw["train"]["rounds"] for cell in changed] == [9] * len(plain)
    assert [cell.raw["data"] for cell in changed] == [cell.raw["data"] for cell in plain]
    assert [cell.starts for cell in changed] == [cell.starts for cell in plain], "a pretraining does not change"
    usual = {"precision": "tf32", "engine": "vector"}
    with closing(Store("runs", create=True)) as store:
        (job,) = plan_cell(build_cells(table, "smoke", None, changes)[0], 1, usual, DataPaths({}), RunIndex(store)).jobs
    assert job.raw["run"] == {"precision": "bf16", "engine": "vector", "seed": 0}


def test_names_of_tables_and_scales(table: Table) -> None:
    assert find_table("9.2") is table
    with pytest.raises(InputError, match=r"table '9\.3' is not known; did you mean '9\.[12]'\?"):
        find_table("9.3")
    with pytest.raises(InputError, match="scale 'smal' is not known; did you mean 'small'"):
        table.scale("smal")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"published": {"FedAvg": [1, 2]}}, "published must have the rows"),
        ({"orderings": [{"claim": "", "pairs": ["FedAvg > SGD"]}]}, "names an unknown row or column"),
        ({"orderings": [{"claim": "", "pairs": ["FedAvg @ mars > FedAvg"]}]}, "names an unknown row or column"),
        ({"rows": {"w/o": {}}}, "must not contain"),
        ({"scales": {"full": {"seeds": 1}}}, "scales must be full, small, smoke"),
        ({"speed": 3}, "Extra inputs"),
        ({"starts": {}}, "there is no start 'digits'"),
        ({"published_from": {"mnist": {"FedAvg": [1]}}}, "FedAvg with 1 figures for 2 columns"),
    ],
)
def test_an_inconsistent_table_is_rejected(changes: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        example_table(**changes)
    with pytest.raises(ValidationError, match=r"62\.95±2\.84"):
        example_table(published={**example_table().published, "FedAvg": ["about 50", 40]})


def test_a_pretraining_may_continue_another_one() -> None:
    starts = {
        "first": {"experiment": {"method": "central", "data": ["mnist", "digits"], "train": {"rounds": 7}}},
        "digits": {"after": "first", "keep_head": True, "experiment": {"method": "fedavg", "train": {"epochs": 9}}},
    }
    cells = {cell.name: cell for cell in build_cells(example_table(starts=starts), "full")}
    cell = cells["FedAvg, pretrained/digits, even"]
    assert len(cell.starts) == 2
    first, second = cell.starts[1].chain
    assert (first.source, first.raw["train"], first.keep_head) == ("digits", {"rounds": 7}, False)
    # The data of the second step is that of the column.
    assert second.raw["data"] == {"name": "digits", "partition": "iid", "clients": 4, "holdout": 0}
    assert second.raw["train"] == {"rounds": 3, "epochs": 9} and second.keep_head


def test_a_figure_has_cells_without_published_numbers() -> None:
    figure = example_table(tables=["figure-9.3"], published={"FedAvg": [50, None]})
    assert figure.label == "Figure 9.3" and len(build_cells(figure, "full")) == 8
    assert example_table().label == "Table 9.1 and 9.2"


def test_sides_of_a_pair() -> None:
    assert pair_sides("A > 3 × B, c @ d e") == (("A", None, 1.0), ("B, c", "d e", 3.0))
