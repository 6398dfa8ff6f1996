"""Tests see no GPU unless they are those for one: whatever trained on a machine with a GPU cannot be forked after."""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("markexpr") != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
