"""Small data sets for the tests of this folder."""

from __future__ import annotations

import numpy as np

from undergrowth.data.dataset import Dataset


def table(samples: int = 60, classes: int = 5, seed: int = 0, **changes: object) -> Dataset:
    """A table whose only feature is the number of the sample, so that samples can be identified."""
    generator = np.random.default_rng(seed)
    arguments: dict[str, object] = {
        "name": "table",
        "x": np.arange(samples, dtype=np.float32)[:, None],
        "y": generator.integers(0, max(classes, 1), samples),
        "test_x": np.zeros((4, 1), dtype=np.float32),
        "test_y": np.zeros(4, dtype=np.int64),
        "classes": classes,
    }
    return Dataset(**(arguments | changes))  # type: ignore[arg-type]
