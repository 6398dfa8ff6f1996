"""Staleness: the functions of the papers, and a sentence for a text that is none of them."""

from __future__ import annotations

import pytest

from undergrowth.core import InputError
from undergrowth.learning import Staleness

AGES = range(8)


def test_constant_does_not_look_at_the_age():
    assert [Staleness("constant")(age) for age in AGES] == [1.0] * 8


@pytest.mark.parametrize("power", [0, 0.5, 1, 2.5])
def test_polynomial_is_a_negative_power_of_one_more_than_the_age(power):
    assert [Staleness(f"polynomial:{power}")(age) for age in AGES] == pytest.approx(
        [(age + 1) ** -power for age in AGES]
    )


def test_hinge_is_one_up_to_an_age_and_falls_from_there():
    expected = [1, 1, 1, 1, 1 / 11, 1 / 21, 1 / 31, 1 / 41]
    assert [Staleness("hinge:10:3")(age) for age in AGES] == pytest.approx(expected)


@pytest.mark.parametrize("text", ["constant", "polynomial:0.5", "polynomial:1000", "hinge:10:4", "hinge:0.5:0"])
def test_every_function_starts_at_one_never_rises_and_stays_a_share(text):
    shares = [Staleness(text)(age) for age in range(100)]
    assert shares[0] == 1.0
    assert shares == sorted(shares, reverse=True)
    assert all(0 <= share <= 1 for share in shares)


@pytest.mark.parametrize(
    "text",
    ["", "Constant", "constant:", "constant:1", "polynomial", "polynomial:", "polynomial:a", "polynomial:-0.5",
     "polynomial:nan", "polynomial:inf", "polynomial:1:2", "hinge", "hinge:1", "hinge:1:-2", "hinge:1:2:3", "poly:1"],
)  # fmt: skip
def test_a_text_that_is_none_of_them_is_refused_and_told_what_would_be_right(text):
    words = rf"method\.staleness '{text}' (is not known; |must be {text.partition(':')[0]})"
    with pytest.raises(InputError, match=words):
        Staleness(text)
