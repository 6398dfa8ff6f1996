"""A small net with BatchNorm and a split, a few samples, and the plain training loop to compare with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from undergrowth.core import Model, Shard, Steps, Task, Train


class Net(nn.Sequential):
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
def task() -> Task:
    return Task(Model(Net), classes=3, train=Train(rounds=10, epochs=2, batch=5, lr=0.05))


@pytest.fixture
def weights(task: Task) -> dict[str, Tensor]:
    return task.model.initial(1)


@pytest.fixture
def shard() -> Shard:
    generator = torch.Generator().manual_seed(8)
    return Shard(torch.randn(23, 4, generator=generator), torch.randint(0, 3, (23,), generator=generator))


@pytest.fixture
def plain_training() -> Callable[..., dict[str, Tensor]]:
    """Ordinary training of the plain net over the same batches: what a device must reproduce."""

    def train(
        weights: dict[str, Tensor], steps: Steps, make: Callable[..., torch.optim.Optimizer]
    ) -> dict[str, Tensor]:
        net = Net()
        net.load_state_dict(weights)
        optimiser = make(net.parameters())
        for batch in steps:
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(batch["x"]), batch["y"]).backward()
            optimiser.step()
        return {name: value.detach() for name, value in net.state_dict().items()}

    return train
