"""From a table to experiments: merging layers, patterns, replaced data; and the check of orderings."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tests.reproduce.example_table import example_table
from undergrowth.core import InputError
from undergrowth.reproduce import Table, find_table
from undergrowth.reproduce.results import check_orderings
from undergrowth.reproduce.table import Figure
from undergrowth.reproduce.table_cells import build_cells, merge_layers


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
    assert by_name["FedAvg/digits, even"].published == Figure(50.5, 1.5)
    starts = by_name["FedAvg, pretrained/digits, even"].starts
    assert [raw["data"]["name"] for raw in starts] == ["npz", "digits"] and starts[0]["model"] == {"name": "logistic"}
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
    ],
)
def test_an_inconsistent_table_is_rejected(changes: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        example_table(**changes)
    with pytest.raises(ValidationError, match=r"62\.95±2\.84"):
        example_table(published={**example_table().published, "FedAvg": ["about 50", 40]})


def test_orderings(table: Table) -> None:
    digits, pictures = "digits, even", "pictures, even"
    ours = {
        ("FedAvg", digits): Figure(50), ("FedProx", digits): Figure(53),
        ("FedAvg", pictures): Figure(41), ("FedProx", pictures): Figure(40),
        ("FedAvg, pretrained", digits): Figure(50),
    }  # fmt: skip
    proximal, pretrained = check_orderings(table, ours)
    assert (proximal.held, proximal.broken, proximal.gap) == ((digits,), (pictures,), 1.0)
    # Published gaps: −1.5 on digits, +5 on pictures.
    assert proximal.published_held == 1 and proximal.published_gap == pytest.approx(1.75)
    start = "FedProx > FedAvg: held in 1 of 2 columns (not in pictures, even), +1.00 on average"
    assert str(proximal).startswith(start)
    # A side with a column is compared with every column of the other side. Equal values do not hold.
    assert (pretrained.held, pretrained.broken) == ((digits,), (digits,)) and pretrained.gap == pytest.approx(4.5)
    absent, _ = check_orderings(table, {("FedAvg", digits): Figure(50)})
    assert absent.gap is None and "unknown, one side was not run" in str(absent)
