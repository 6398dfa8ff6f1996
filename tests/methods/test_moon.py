"""MOON: its contrastive term, equality with FedAvg, price, projection head. Its loop is in test_reference_averaging."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import undergrowth as ug
from tests.methods.test_methods import SHARDS, build, play, same, task  # noqa: F401
from undergrowth.core import Context, Packet, Shard, Task
from undergrowth.learning import Contrastive, LossInputs, features_of
from undergrowth.methods import FedAvg, Moon
from undergrowth.models import builder


def contrastive_loss(z: Tensor, near: Tensor, far: Tensor, temperature: float) -> Tensor:
    cosine = torch.nn.CosineSimilarity(dim=1)
    to, away = (torch.exp(cosine(z, other) / temperature) for other in (near, far))
    return -torch.log(to / (to + away)).mean()


def test_the_contrastive_term_is_the_formula_and_finite_at_any_temperature(task: Task) -> None:  # noqa: F811
    weights, shard = task.model.initial(1), SHARDS["b"]
    near, far = (features_of(task, task.model.initial(seed), shard.x, "head") for seed in (2, 3))
    assert near.shape == (15, 6) and not near.requires_grad
    output = task.model.run(weights, shard.x, training=True, maps=("head",))
    batch = {"x": shard.x, "y": shard.y, "near": near, "far": far}
    inputs = LossInputs(task, batch, output, weights, weights)
    torch.testing.assert_close(Contrastive(0.5)(inputs), contrastive_loss(output.maps["head"], near, far, 0.5))
    assert torch.isfinite(Contrastive(1e-6)(inputs)), "although exp(1 / temperature) overflows"


def test_with_mu_zero_moon_is_fedavg_bit_for_bit(task: Task) -> None:  # noqa: F811
    average, _ = play(FedAvg(), task)
    assert same(play(Moon(mu=0.0), task)[0]["model"], average["model"])
    assert not same(play(Moon(), task)[0]["model"], average["model"])


def test_a_device_that_is_asked_for_the_first_time_trains_as_in_fedavg(task: Task) -> None:  # noqa: F811
    first, average = (play(method, task, rounds=1)[0]["model"] for method in (Moon(mu=5.0), FedAvg()))
    torch.testing.assert_close(first, average, rtol=1e-5, atol=1e-6)
    second, average = (play(method, task, rounds=2)[0]["model"] for method in (Moon(mu=5.0), FedAvg()))
    assert float((second["0.weight"] - average["0.weight"]).norm()) > 1e-3


def test_features_of_the_fixed_models_are_computed_once_per_job(tmp_path: Path) -> None:
    def flops(method: str, epochs: int) -> float:
        result = ug.run(method, clients=4, model="mlp", rounds=2, epochs=epochs, out=str(tmp_path))
        return result.ledger.flops

    extra = [flops("moon", epochs) - flops("fedavg", epochs) for epochs in (1, 3)]
    assert extra[0] == pytest.approx(extra[1]) and extra[0] > 0


@pytest.mark.parametrize("method", ["moon", "fedavg"])
def test_the_projection_travels_and_is_priced_as_part_of_the_model(method: str, tmp_path: Path) -> None:
    """mlp on digits: 64 → 16 → 10 without, 64 → 16 → (16 → 16 → 8) → 10 with a projection of 8."""
    hidden, settings = {"hidden": [16]}, {"clients": 2, "model": "mlp", "rounds": 2, "out": str(tmp_path)}
    plain = ug.run(method, model_options=hidden, **settings)
    projected = ug.run(method, model_options={**hidden, "projection": 8}, **settings)
    more = (16 * 16 + 16) + (16 * 8 + 8) + (8 * 10 + 10) - (16 * 10 + 10)
    for one, other in zip(plain.ledger.rows(), projected.ledger.rows(), strict=True):
        assert other.bytes_down - one.bytes_down == other.bytes_up - one.bytes_up == 4 * more
        assert other.flops > one.flops
    assert ug.load(projected.run, str(tmp_path)).model.projection[2].weight.shape == (8, 16)


class ToDouble(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.double()


def double_precision_wrn() -> torch.nn.Module:
    net = builder("wrn-10-1", (1, 8, 8), 10)().double()
    net[0] = torch.nn.Sequential(ToDouble(), net[0])  # type: ignore[index,operator]
    return net


@pytest.mark.slow
def test_the_vector_engine_gives_the_same_with_batchnorm(tmp_path: Path) -> None:
    """In double precision: in single precision, rounding changes the sign of activations on some CPUs."""
    small = {"clients": 3, "model": double_precision_wrn, "rounds": 2, "batch": 64, "lr": 0.01, "out": str(tmp_path)}
    plain = ug.run("fedavg", **small)
    serial, vector = (ug.run("moon", options={"mu": 1.0}, engine=e, **small) for e in ("serial", "vector"))
    assert [row["not_stacked"] for row in vector.history] == [0, 0]
    assert distance(serial, vector) < 1e-5 * distance(serial, plain)


def distance(one: ug.Result, other: ug.Result) -> float:
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=False)
    return float(sum((a - b).detach().square().sum() for a, b in pairs).sqrt())


def test_a_device_without_samples_sends_a_model_without_weight(task: Task) -> None:  # noqa: F811
    nothing = Shard(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    up, _ = Moon().client.local(task, Packet(task.model.initial(1)), nothing, {}, Context(0, "a", 0))
    assert up.scalars["samples"] == 0
