"""Stratified splits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undergrowth.core.errors import InputError
from undergrowth.data.split import stratified_split


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=40), st.floats(0.01, 0.99), st.integers(0, 99))
def test_no_part_is_empty_and_no_sample_is_lost(labels: list[int], fraction: float, seed: int) -> None:
    train, test = stratified_split(np.array(labels), fraction, seed)
    assert sorted([*train, *test]) == list(range(len(labels)))
    assert len(train) and (len(test) or len(set(labels)) == 1 or fraction < 0.5)
    again = stratified_split(np.array(labels), fraction, seed)
    assert train.tolist() == again[0].tolist()


def test_every_class_gives_the_same_fraction() -> None:
    labels = np.repeat([0, 1], [50, 10])
    _, test = stratified_split(labels, 0.2, 0)
    assert np.bincount(labels[test]).tolist() == [10, 2]


@pytest.mark.parametrize("fraction", [0, 1, -1, float("nan"), "a", True])
def test_wrong_fractions_are_refused(fraction: float) -> None:
    with pytest.raises(InputError, match="test_share is"):
        stratified_split(np.array([0, 1]), fraction, 0)


def test_wrong_seeds_are_refused() -> None:
    with pytest.raises(InputError, match="seed is -1"):
        stratified_split(np.array([0, 1]), 0.5, -1)
