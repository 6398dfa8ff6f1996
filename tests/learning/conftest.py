"""A small net with BatchNorm and a split, a few samples, and the plain training loop to compare with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.core.conftest import Staged
from undergrowth.core import Model, Shard, Steps, Task, Train


@pytest.fixture
def task() -> Task:
    return Task(Model(Staged), classes=3, train=Train(rounds=10, epochs=2, batch=5, lr=0.05))


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
        net = Staged()
        net.load_state_dict(weights)
        optimiser = make(net.parameters())
        for batch in steps:
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(batch["x"]), batch["y"]).backward()
            optimiser.step()
        return {name: value.detach() for name, value in net.state_dict().items()}

    return train
