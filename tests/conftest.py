"""Tests see no GPU unless they are those for one: whatever trained on a machine with a GPU cannot be forked after.

And they compute with one thread, as runs do, unless they say otherwise: the models are so small that threads only wait
for each other, and on a busy machine a hundred times as long as they compute.
"""

from __future__ import annotations

import os

import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is loaded, which other files like this one do


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("markexpr") != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
