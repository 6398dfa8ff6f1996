"""A small net with BatchNorm and two places to split it, and a task around a linear model."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from hypothesis import settings
from torch import nn

from undergrowth.core import Model, Task, Train

settings.register_profile("undergrowth", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("undergrowth")


class Staged(nn.Sequential):
    """Two normalised stages and a head."""

    levels = {"low": "second", "head": "out"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(
            OrderedDict(
                first=nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU()),
                second=nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU()),
                out=nn.Linear(5, 3),
            )
        )


@pytest.fixture
def staged() -> Model:
    return Model(Staged)


@pytest.fixture
def inputs() -> torch.Tensor:
    return torch.randn(9, 4, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="session")
def linear_task() -> Task:
    return Task(Model(lambda: nn.Linear(2, 2)), classes=2, train=Train(rounds=3))
