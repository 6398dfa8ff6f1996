"""MOON: the term against its formula, a job against a plain loop, and what must equal FedAvg."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import undergrowth as ug
from tests.methods.test_methods import SHARDS, build, play, same, task  # noqa: F401
from undergrowth.core import Context, Packet, Shard, Task
from undergrowth.learning import Contrastive, LossInputs, features_of
from undergrowth.methods import FedAvg, Moon
from undergrowth.models import builder


def head_features(net: torch.nn.Module, x: Tensor) -> Tensor:
    for layer in list(net.children())[:3]:
        x = layer(x)
    return x


def by_the_formula(z: Tensor, near: Tensor, far: Tensor, temperature: float) -> Tensor:
    cosine = torch.nn.CosineSimilarity(dim=1)
    to, away = (torch.exp(cosine(z, other) / temperature) for other in (near, far))
    return -torch.log(to / (to + away)).mean()


def test_the_term_is_that_of_the_paper_and_bears_any_temperature(task: Task) -> None:  # noqa: F811
    weights, shard = task.model.initial(1), SHARDS["b"]
    near, far = (features_of(task, task.model.initial(seed), shard.x, "head") for seed in (2, 3))
    assert near.shape == (15, 6) and not near.requires_grad
    output = task.model.run(weights, shard.x, training=True, maps=("head",))
    batch = {"x": shard.x, "y": shard.y, "near": near, "far": far}
    inputs = LossInputs(task, batch, output, weights, weights)
    torch.testing.assert_close(Contrastive(0.5)(inputs), by_the_formula(output.maps["head"], near, far, 0.5))
    assert torch.isfinite(Contrastive(1e-6)(inputs)), "where exp(1 / temperature) is infinite"


def test_a_job_is_that_of_a_plain_loop(task: Task) -> None:  # noqa: F811
    """The loop runs both models in every step, as the paper has it."""
    received, previous, shard = task.model.initial(1), task.model.initial(2), SHARDS["b"]
    context = Context(9, "b", 1)
    up, own = Moon(mu=2.0).client.local(task, Packet(received), shard, {"model": previous}, context)
    net, near, far = build(), build().eval(), build().eval()
    for module, weights in ((net, received), (near, received), (far, previous)):
        module.load_state_dict(weights)
    optimiser = torch.optim.SGD(net.parameters(), 0.1, momentum=0.5)
    generator = context.generator("order")
    for rows in (rows for _ in range(2) for rows in torch.randperm(15, generator=generator).split(4)):
        x, z = shard.x[rows], head_features(net, shard.x[rows])
        with torch.no_grad():
            others = head_features(near, x), head_features(far, x)
        loss = functional.cross_entropy(net[3](z), shard.y[rows])  # type: ignore[index]
        optimiser.zero_grad()
        (loss + 2.0 * by_the_formula(z, *others, 0.5)).backward()
        optimiser.step()
    torch.testing.assert_close(dict(up.tensors), dict(net.state_dict()), rtol=1e-4, atol=1e-5)
    assert same(own["model"], dict(up.tensors)), "it keeps what it sends"
    plain, _ = FedAvg().client.local(task, Packet(received), shard, {}, context)
    assert float((plain.tensors["3.weight"] - up.tensors["3.weight"]).norm()) > 1e-3, "the term does something"


def test_without_the_term_it_is_fedavg_bit_for_bit(task: Task) -> None:  # noqa: F811
    average, _ = play(FedAvg(), task)
    assert same(play(Moon(mu=0.0), task)[0]["model"], average["model"])
    assert not same(play(Moon(), task)[0]["model"], average["model"])


def test_a_device_without_a_previous_model_trains_as_in_fedavg(task: Task) -> None:  # noqa: F811
    first, average = (play(method, task, rounds=1)[0]["model"] for method in (Moon(mu=5.0), FedAvg()))
    torch.testing.assert_close(first, average, rtol=1e-5, atol=1e-6)
    second, average = (play(method, task, rounds=2)[0]["model"] for method in (Moon(mu=5.0), FedAvg()))
    assert float((second["0.weight"] - average["0.weight"]).norm()) > 1e-3


def test_the_other_models_are_run_once_a_job(tmp_path: Path) -> None:
    def flops(method: str, epochs: int) -> float:
        result = ug.run(method, clients=4, model="mlp", rounds=2, epochs=epochs, out=str(tmp_path))
        return result.ledger.flops

    extra = [flops("moon", epochs) - flops("fedavg", epochs) for epochs in (1, 3)]
    assert extra[0] == pytest.approx(extra[1]) and extra[0] > 0


class ToDouble(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.double()


def double_precision_wrn() -> torch.nn.Module:
    net = builder("wrn-10-1", (1, 8, 8), 10)().double()
    net[0] = torch.nn.Sequential(ToDouble(), net[0])  # type: ignore[index,operator]
    return net


def test_stacked_clients_with_batchnorm_give_the_same(tmp_path: Path) -> None:
    """In double precision: in single, rounding moves activations across zero, on some CPUs further than the bound."""
    small = {"clients": 3, "model": double_precision_wrn, "rounds": 2, "batch": 64, "lr": 0.01, "out": str(tmp_path)}
    plain = ug.run("fedavg", **small)
    serial, vector = (ug.run("moon", options={"mu": 1.0}, engine=e, **small) for e in ("serial", "vector"))
    assert [row["not_stacked"] for row in vector.history] == [0, 0]
    assert distance(serial, vector) < 1e-5 * distance(serial, plain)


def distance(one: ug.Result, other: ug.Result) -> float:
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=False)
    return float(sum((a - b).detach().square().sum() for a, b in pairs).sqrt())


def test_a_model_without_stages_is_refused_before_the_first_round(tmp_path: Path) -> None:
    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = torch.nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x.flatten(1))

    with pytest.raises(ug.InputError, match="of stages"):
        ug.run("moon", clients=3, model=Plain, rounds=1, out=str(tmp_path))


def test_an_empty_shard_has_empty_features(task: Task) -> None:  # noqa: F811
    nothing = Shard(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    up, _ = Moon().client.local(task, Packet(task.model.initial(1)), nothing, {}, Context(0, "a", 0))
    assert up.scalars["samples"] == 0
