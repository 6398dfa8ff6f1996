"""The embedded data set."""

from __future__ import annotations

import numpy as np

from undergrowth.data import describe, load


def test_digits() -> None:
    dataset, entry = load("digits"), describe("digits")
    assert dataset.shape == entry.shape == (1, 8, 8)
    assert (len(dataset.y), len(dataset.test_y)) == (entry.train, entry.test)
    x = np.asarray(dataset.x)
    assert x.dtype == np.float32 and np.isclose(x.max() - x.min(), 1)
    assert abs(x.mean()) < 0.01  # centred
    assert np.bincount(np.asarray(dataset.test_y)).min() >= 34  # every class has its fifth
    assert dataset.missing_classes == ()
    assert np.array_equal(x, np.asarray(load("digits").x))
