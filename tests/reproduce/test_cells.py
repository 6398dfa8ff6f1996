"""From a table to experiments: layers, patterns, what stands in for data; and what came out against the print."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tests.reproduce.made_up import made_up
from undergrowth.core import InputError
from undergrowth.reproduce import Table, find
from undergrowth.reproduce.cells import cells, layered
from undergrowth.reproduce.findings import verdicts
from undergrowth.reproduce.table import Figure


def test_later_layers_win_and_another_name_takes_the_old_options_along() -> None:
    base = {"data": {"name": "cifar10", "clients": 5, "train_samples": 9}, "method": {"name": "fedprox", "mu": 1}}
    assert layered(base, {"method": {"mu": 2}})["method"] == {"name": "fedprox", "mu": 2}
    assert layered(base, {"method": "fedavg"})["method"] == {"name": "fedavg"}
    assert layered(base, {"data": "digits"})["data"] == {"name": "digits", "clients": 5}
    assert layered({"data": {"clients": 5}}, {"data": "digits"})["data"] == {"name": "digits", "clients": 5}
    assert base["method"] == {"name": "fedprox", "mu": 1}


def test_the_cells_of_a_scale(table: Table) -> None:
    by_name = {cell.name: cell for cell in cells(table, "small")}
    assert len(by_name) == 6  # two of eight are not printed
    assert by_name["FedProx/pictures, even"].tree["method"] == {"name": "fedprox", "mu": 1}
    assert by_name["FedProx/digits, even"].tree["method"] == {"name": "fedprox", "mu": 0.1}
    assert by_name["FedAvg/pictures, even"].tree["data"]["train_samples"] == 100
    assert by_name["FedAvg/digits, even"].published == Figure(50.5, 1.5)
    start = by_name["FedAvg, pretrained/digits, even"].starts
    assert [tree["data"]["name"] for tree in start] == ["npz", "digits"] and start[0]["model"] == {"name": "logistic"}
    assert [cell.tree["train"]["rounds"] for cell in cells(table, "smoke")] == [2, 2, 2, 2]


def test_only_some_cells(table: Table) -> None:
    def named(pattern: str) -> list[str]:
        return [cell.name for cell in cells(table, "full", pattern)]

    assert named("fedavg") == ["FedAvg/digits, even", "FedAvg/pictures, even"]
    assert named("FedAvg*/*even") == [*named("FedAvg"), "FedAvg, pretrained/digits, even"]
    assert named("/pictures*") == ["FedAvg/pictures, even", "FedProx/pictures, even"]
    assert named("FedAvg | FedProx/digits*") == ["FedAvg/digits, even", "FedProx/digits, even"]
    with pytest.raises(InputError, match=r"--only 'FedSGD' leaves nothing of table 9.1 at scale full.*rows FedAvg"):
        cells(table, "full", "FedSGD")


def test_names_of_tables_and_scales(table: Table) -> None:
    assert find("9.2") is table
    with pytest.raises(InputError, match=r"table '9\.3' is not known; did you mean '9\.[12]'\?"):
        find("9.3")
    with pytest.raises(InputError, match="scale 'smal' is not known; did you mean 'small'"):
        table.scale("smal")


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"published": {"FedAvg": [1, 2]}}, "published must have the rows"),
        ({"orderings": [{"says": "", "pairs": ["FedAvg > SGD"]}]}, "a row or column that is not there"),
        ({"orderings": [{"says": "", "pairs": ["FedAvg @ mars > FedAvg"]}]}, "a row or column that is not there"),
        ({"rows": {"w/o": {}}}, "do without"),
        ({"scales": {"full": {"seeds": 1}}}, "scales must be full, small, smoke"),
        ({"speed": 3}, "Extra inputs"),
    ],
)
def test_a_table_that_does_not_fit_together_is_refused(changes: dict, wrong: str) -> None:
    with pytest.raises(ValidationError, match=wrong):
        made_up(**changes)
    with pytest.raises(ValidationError, match=r"62\.95±2\.84"):
        made_up(published={**made_up().published, "FedAvg": ["about 50", 40]})


def test_orderings_on_made_up_figures(table: Table) -> None:
    one, other = "digits, even", "pictures, even"
    ours = {
        ("FedAvg", one): Figure(50), ("FedProx", one): Figure(53),
        ("FedAvg", other): Figure(41), ("FedProx", other): Figure(40),
        ("FedAvg, pretrained", one): Figure(50),
    }  # fmt: skip
    pull, start = verdicts(table, ours)
    assert (pull.held, pull.broken, pull.gap) == ((one,), (other,), 1.0)
    # The print: −1.5 on the one, +5 on the other.
    assert pull.published_held == 1 and pull.published_gap == pytest.approx(1.75)
    assert str(pull).startswith("FedProx > FedAvg: held in 1 of 2 columns (not in pictures, even), +1.00 on average")
    # A side with a column is compared with every column of the other; what is equal is not higher.
    assert (start.held, start.broken) == ((one,), (one,)) and start.gap == pytest.approx(4.5)
    absent, _ = verdicts(table, {("FedAvg", one): Figure(50)})
    assert absent.gap is None and "cannot be said" in str(absent)
