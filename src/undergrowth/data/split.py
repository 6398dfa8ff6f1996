"""Parts of a data set that hold every class in its share: a central test part, or a smaller set."""

from __future__ import annotations

import numpy as np

from undergrowth.core.errors import InputError


def stratified_split(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions for training and for testing: the same share of every class, the same for the same seed.

    Every class keeps a training sample. Where all classes are too small to give one, samples are drawn from all.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise InputError(f"test_share is {share!r}; it must be a number between 0 and 1, such as 0.2")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed is {seed!r}; it must be a whole number from 0 on")
    generator = np.random.default_rng(seed)
    test: list[np.ndarray] = []
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        test.append(members[: min(round(share * len(members)), len(members) - 1)])
    chosen = np.concatenate(test) if test else np.zeros(0, dtype=np.int64)
    if chosen.size == 0 and len(labels) > 1:
        chosen = generator.permutation(len(labels))[: max(1, int(share * len(labels)))]
    held = np.zeros(len(labels), dtype=bool)
    held[chosen] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def proportional_sample(labels: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Positions of `count` samples, each class in its share, the same for the same seed; fewer are among more."""
    order = np.random.default_rng(seed).permutation(len(labels))
    place = np.empty(len(labels))
    for label in np.unique(labels):
        members = order[labels[order] == label]
        place[members] = (np.arange(len(members)) + 0.5) / len(members)
    # Of equal places, the one that was drawn first.
    chosen = order[np.argsort(place[order], kind="stable")[:count]]
    return np.sort(chosen)
