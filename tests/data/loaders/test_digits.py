"""The embedded data set."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from undergrowth.data import describe, load


def test_digits() -> None:
    dataset, entry = load("digits"), describe("digits")
    assert dataset.shape == entry.shape == (1, 8, 8)
    assert (len(dataset.y), len(dataset.test_y)) == (entry.train, entry.test)
    x = np.asarray(dataset.x)
    assert x.dtype == np.float32 and np.isclose(x.max() - x.min(), 1)
    assert abs(x.mean()) < 0.01  # centred
    assert np.bincount(np.asarray(dataset.test_y)).min() >= 34  # every class has its fifth
    assert len(np.unique(np.asarray(dataset.y))) == dataset.classes
    assert np.array_equal(x, np.asarray(load("digits").x))


def test_the_file_is_read_as_scikit_learn_reads_it() -> None:
    pixels, labels = load_digits(return_X_y=True)
    dataset = load("digits")
    read = np.concatenate([np.asarray(dataset.x), np.asarray(dataset.test_x)])
    scaled = (pixels.reshape(-1, 1, 8, 8) / 16 - 0.3053).astype(np.float32)
    assert sorted(row.tobytes() for row in read) == sorted(row.tobytes() for row in scaled)
    assert np.array_equal(np.bincount(np.concatenate([dataset.y, dataset.test_y])), np.bincount(labels))
