"""Stratified subsets of a data set: a central test set, or a smaller set with the same class frequencies."""

from __future__ import annotations

import numpy as np

from undergrowth.core import InputError


def stratified_split(labels: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices for training and for testing, with `fraction` of every class for testing.

    Every class keeps at least one training sample. If every class is too small to give a test sample, test samples are
    drawn from all classes together.
    """
    _check(fraction, seed)
    generator = np.random.default_rng(seed)
    test: list[np.ndarray] = []
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        test.append(members[: min(round(fraction * len(members)), len(members) - 1)])
    chosen = np.concatenate(test) if test else np.zeros(0, dtype=np.int64)
    if chosen.size == 0 and len(labels) > 1:
        chosen = generator.permutation(len(labels))[: max(1, int(fraction * len(labels)))]
    is_test = np.zeros(len(labels), dtype=bool)
    is_test[chosen] = True
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def group_split(groups: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices for training and for testing, with all samples of `fraction` of the groups for testing."""
    _check(fraction, seed)
    names = np.unique(groups)
    if len(names) < 2:
        raise InputError(f"test_by is 'group', but there is only the group '{names[0]}'; two are needed")
    count = min(max(1, round(fraction * len(names))), len(names) - 1)
    chosen = np.random.default_rng(seed).permutation(names)[:count]
    is_test = np.isin(groups, chosen)
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def _check(fraction: float, seed: int) -> None:
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction < 1:
        raise InputError(f"test_share is {fraction!r}; it must be a number between 0 and 1, such as 0.2")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed is {seed!r}; it must be a whole number of at least 0")


def proportional_sample(labels: np.ndarray, count: int) -> np.ndarray:
    """Indices of `count` samples with the class frequencies of the whole set.

    A smaller sample is a subset of a larger one.
    """
    order = np.random.default_rng(0).permutation(len(labels))
    rank = np.empty(len(labels))  # rank of a sample within its class, divided by the size of the class
    for label in np.unique(labels):
        members = order[labels[order] == label]
        rank[members] = (np.arange(len(members)) + 0.5) / len(members)
    chosen = order[np.argsort(rank[order], kind="stable")[:count]]  # equal ranks stay in the random order
    return np.sort(chosen)
