"""Verdicts about published orderings: they need every seed, and small gaps need more seeds."""

from __future__ import annotations

import pytest

from tests.reproduce.example_table import example_table
from undergrowth.reproduce import Table
from undergrowth.reproduce.orderings import OrderingResult, check_orderings, is_settled
from undergrowth.reproduce.table import Figure

DIGITS, PICTURES = "digits, even", "pictures, even"


def check(table: Table, high: dict[int, float], low: dict[int, float]) -> OrderingResult:
    """The result of FedProx > FedAvg on digits."""
    return check_orderings(table, {("FedProx", DIGITS): high, ("FedAvg", DIGITS): low})[0]


@pytest.mark.parametrize(
    ("high", "low", "verdict", "count"),
    [
        ({0: 2, 1: 3}, {0: 1, 1: 1}, "held", "2 of 2 seeds"),
        ({0: 2, 1: 3}, {0: 1, 1: 4}, "open", "1 of 2 seeds"),
        ({0: 9, 1: 3}, {0: 1, 1: 3}, "open", "1 of 2 seeds, 1 equal"),  # equal values are neither right nor wrong
        ({0: 1, 1: 3}, {0: 2, 1: 3}, "open", "0 of 2 seeds, 1 equal"),
        ({0: 2, 1: 0, 2: 0}, {0: 1, 1: 0, 2: 1}, "open", "1 of 3 seeds, 1 equal"),
        ({0: 0, 1: 0}, {0: 0, 1: 0}, "equal", "nothing to compare, 2 seeds; published: -1.50"),
        ({0: 0}, {0: 0}, "open", "0 of 1 seeds, 1 equal"),
        ({0: 1, 1: 3}, {0: 2, 1: 4}, "no", "0 of 2 seeds"),
        ({0: 2}, {0: 1}, "open", "1 of 1 seeds"),
        ({0: 1}, {0: 2}, "open", "0 of 1 seeds"),
        ({0: 2, 2: 5}, {0: 1, 1: 9, 2: 4}, "held", "2 of 2 seeds, +1.00"),  # only seeds that both sides have are paired
    ],
)
def test_a_verdict_needs_every_seed(table: Table, high: dict, low: dict, verdict: str, count: str) -> None:
    result = check(table, high, low)
    assert result.verdict == verdict and f"{verdict}, {count}" in str(result)


def test_columns_and_published_gaps(table: Table) -> None:
    values = {
        ("FedAvg", DIGITS): {0: 49.0, 1: 51.0}, ("FedProx", DIGITS): {0: 52.0, 1: 54.0},
        ("FedAvg", PICTURES): {0: 41.0, 1: 41.0}, ("FedProx", PICTURES): {0: 40.0, 1: 40.0},
        ("FedAvg, pretrained", DIGITS): {0: 50.0, 1: 50.0},
    }  # fmt: skip
    proximal, pretrained = check_orderings(table, values)
    assert (proximal.held, proximal.broken, proximal.gap) == ((DIGITS,), (PICTURES,), 1.0)
    # Published gaps: −1.5 on digits, +5 on pictures.
    assert proximal.published_held == 1 and proximal.published_gap == pytest.approx(1.75)
    assert str(proximal) == (
        "FedProx > FedAvg: open, 2 of 4 seeds in 2 columns (means: not in pictures, even), +1.00 on average; "
        "published: +1.75, 1 of 2 columns"
    )
    # A side with a column is compared with every column of the other side.
    assert (pretrained.held, pretrained.broken) == ((DIGITS,), (DIGITS,)) and pretrained.gap == pytest.approx(4.5)
    absent, _ = check_orderings(table, {("FedAvg", DIGITS): {0: 50.0}})
    assert absent.gap is None and str(absent) == "FedProx > FedAvg: open, one side was not run"


def test_published_numbers_of_another_pretraining_are_marked(table: Table) -> None:
    values = {("FedProx", DIGITS): {0: 5.0}, ("FedAvg", DIGITS): {0: 1.0}}
    same = check_orderings(table, values, {("FedProx", DIGITS): Figure(9), ("FedAvg", DIGITS): Figure(7)})[0]
    assert same.published_gap == 2.0 and not same.other_start
    other = check_orderings(table, values, {("FedAvg", DIGITS): Figure(7)})[0]
    assert other.published_gap == pytest.approx(-1.5) and "published with another pretraining: -1.50" in str(other)


def test_published_columns_are_those_with_numbers() -> None:
    pretrained = {row: [None, None] for row in ("FedAvg, pretrained", "FedProx, pretrained")}
    table = example_table(published={"FedAvg": [50, None], "FedProx": [52, None], **pretrained})
    low, high = {0: 1.0, 1: 1.0}, {0: 2.0, 1: 2.0}
    values = {("FedAvg", DIGITS): low, ("FedAvg", PICTURES): low, ("FedProx", DIGITS): high, ("FedProx", PICTURES): low}
    result = check_orderings(table, values)[0]
    assert str(result) == (
        "FedProx > FedAvg: open, 2 of 4 seeds in 2 columns, 2 equal (means: not in pictures, even), +0.50 on average; "
        "published: +2.00, 1 of 1 columns"
    )
    equal = check_orderings(table, dict.fromkeys(values, low))[0]
    assert str(equal) == (
        "FedProx > FedAvg: equal, nothing to compare, 4 seeds in 2 columns; published: +2.00, 1 of 1 columns"
    )


def test_a_factor() -> None:
    table = example_table(orderings=[{"claim": "", "pairs": ["FedProx > 3 × FedAvg"]}])
    assert check(table, {0: 3.1, 1: 9}, {0: 1, 1: 2}).verdict == "held"
    assert check(table, {0: 2.9, 1: 5}, {0: 1, 1: 2}).verdict == "no"


def test_columns_that_are_seeds_are_compared_together_and_need_no_more_seeds() -> None:
    columns = {name: {"data": "digits", "run": {"seed": seed}} for seed, name in enumerate(("digits, even", "other"))}
    table = example_table(columns=columns)
    assert table.columns_are_seeds and not example_table().columns_are_seeds
    values = {("FedProx", name): {0: 1.0 + 9 * place} for place, name in enumerate(columns)}
    (result,) = (
        each
        for each in check_orderings(table, values | {("FedAvg", name): {0: 0.0} for name in columns})
        if each.pair == "FedProx > FedAvg"
    )
    assert result.verdict == "held" and result.seeds == (True, True) and result.unsettled == ()


def test_a_gap_below_two_standard_errors_needs_more_seeds(table: Table) -> None:
    # Differences 1 and 3: mean 2, standard error √2/√2 = 1, so the gap is exactly two standard errors.
    assert is_settled([1, 3]) and not is_settled([1, 3.1])
    assert not is_settled([5]) and not is_settled([]) and is_settled([1, -1, 2, -3])
    unsettled = check(table, {0: 1, 1: 9}, {0: 0, 1: 0}).unsettled
    assert unsettled == (("FedProx", DIGITS), ("FedAvg", DIGITS))
    assert check(table, {0: 1, 1: 1.1}, {0: 0, 1: 0}).unsettled == ()
