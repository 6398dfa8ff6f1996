"""Tests see no GPU unless they are those for one: whatever trained on a machine with a GPU cannot be forked after.

And they compute with one thread, as runs do, unless they say otherwise: the models are so small that threads only wait
for each other, the more of them the longer.
"""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # of this process, where torch is not loaded yet, and of those it starts
    if config.getoption("markexpr") != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
