"""Large linear layers that take their steps in the backward pass, against torch's own optimiser."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from undergrowth.core import Batch, Carry, Context, Model, Packet, Shard, Task, Train
from undergrowth.engines.vector.carries import slice_stack, stack_carries
from undergrowth.engines.vector.layers import Stacked
from undergrowth.learning import CrossEntropy, GradientClient, Proximal, Sgd, descent

WIDE = 24


@pytest.fixture(autouse=True)
def every_layer_is_large(monkeypatch):
    monkeypatch.setattr(descent, "LARGE", 1)


class Tied(nn.Module):
    """One layer twice, one whose weights something else reads, one without a bias, one called by names, two plain."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.read = (nn.Linear(WIDE, WIDE) for _ in range(3))
        self.bare = nn.Linear(WIDE, WIDE, bias=False)
        self.named = nn.Linear(WIDE, WIDE)
        self.head = nn.Linear(WIDE, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(torch.relu(self.twice(torch.relu(self.first(x)))))
        x = functional.linear(x, weight=self.named.weight, bias=self.named.bias)
        return self.head(torch.relu(self.bare(self.read(x))) * self.read.weight.mean())


def job(build, epochs: int = 3, **train) -> tuple[Task, Packet, Shard]:
    task = Task(Model(build), 5, Train(epochs=epochs, batch=16, **train))
    generator = torch.Generator().manual_seed(1)
    shard = Shard(torch.randn(50, WIDE, generator=generator), torch.randint(5, (50,), generator=generator))
    return task, Packet(task.model.initial(0)), shard


def stepped(client: GradientClient, task: Task, down: Packet, shard: Shard) -> tuple[Carry, list[Batch]]:
    carry, steps = client.begin(task, down, shard, {}, Context(0, "device", 0))
    batches = list(steps)
    for batch in batches:
        carry = client.step(task, carry, batch)
    return carry, batches


def by_torch(task: Task, down: Packet, batches: list[Batch]) -> dict[str, Tensor]:
    net = task.model.build()
    net.load_state_dict(down.tensors)
    optimiser = torch.optim.SGD(net.parameters(), task.train.lr)
    for batch in batches:
        optimiser.zero_grad()
        functional.cross_entropy(net(batch["x"]), batch["y"]).backward()
        optimiser.step()
    return {name: value.detach() for name, value in net.named_parameters()}


def test_only_layers_whose_weights_nothing_else_looks_at_descend():
    task, down, shard = job(Tied)
    before = {name: value.clone() for name, value in down.tensors.items()}
    carry, batches = stepped(GradientClient(), task, down, shard)
    assert carry["descending"] == {"first.weight", "head.weight"}
    torch.testing.assert_close(carry["parameters"], by_torch(task, down, batches))
    assert all(torch.equal(value, before[name]) for name, value in down.tensors.items()), "what came down stays"


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, 5))


@pytest.mark.parametrize(
    ("client", "train"),
    [
        (GradientClient(CrossEntropy() + Proximal(0.1)), {}),
        (GradientClient(), {"momentum": 0.5}),
        (GradientClient(), {"weight_decay": 0.1}),
        (GradientClient(), {"optimiser": "adam"}),
        (GradientClient(optimiser=Sgd(0.9)), {}),
    ],
)
def test_what_needs_the_gradients_gets_them(client, train):
    assert not stepped(client, *job(mlp, **train))[0].get("descending")


def test_a_part_of_the_model_descends_and_the_rest_stays():
    task, down, shard = job(mlp)
    carry, _ = stepped(GradientClient(split="head"), task, down, shard)
    assert carry["descending"] == {"2.weight"} and set(carry["parameters"]) == {"2.weight", "2.bias"}


def test_sequences_descend_too():
    task, down, _ = job(lambda: nn.Sequential(nn.Linear(6, 8), nn.Flatten(), nn.Linear(8 * 4, 5)))
    generator = torch.Generator().manual_seed(3)
    shard = Shard(torch.randn(30, 4, 6, generator=generator), torch.randint(5, (30,), generator=generator))
    carry, batches = stepped(GradientClient(), task, down, shard)
    assert carry["descending"] == {"0.weight", "2.weight"}
    torch.testing.assert_close(carry["parameters"], by_torch(task, down, batches))


def test_stacked_clients_descend_as_they_do_alone():
    task, down, shard = job(mlp)
    client, halves = GradientClient(), [Shard(shard.x[:32], shard.y[:32]), Shard(shard.x[16:48], shard.y[16:48])]
    alone = [stepped(client, task, down, half) for half in halves]
    carry = stack_carries([client.begin(task, down, half, {}, Context(0, "device", 0))[0] for half in halves])
    for pair in zip(*(batches for _, batches in alone), strict=False):
        batch = {name: torch.cat([each[name] for each in pair]) for name in ("x", "y")}
        with Stacked(2, None):
            carry = client.step(task, carry, {**batch, "weight": torch.full((32,), 1 / 16)})
    assert carry["descending"] == {"0.weight", "2.weight"}
    for place, (single, _) in enumerate(alone):
        torch.testing.assert_close(slice_stack(carry["parameters"], place), single["parameters"])
