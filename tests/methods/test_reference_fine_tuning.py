"""FedFT with its data selection, and FedSplit, against plain loops of the thesis' equations (chapter 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.methods.tiny_federation import (
    SHARDS,
    TASK,
    Weights,
    assert_same,
    descend,
    device_context,
    initial,
    mean,
    module_with,
    server_context,
    shuffles,
    simulate,
    train,
    weights_of,
)
from undergrowth.core import Shard
from undergrowth.learning.clustering import representatives
from undergrowth.methods import FedFT, FedFTEDS, FedFTRDS, FedSplit

LOWER = [name for name in TASK.model.shapes if name.startswith("lower")]
Pick = Callable[[Weights, Shard, torch.Generator], Tensor]  # positions of the samples that a device trains on


def features(weights: Weights, x: Tensor) -> Tensor:
    """φ(x), in evaluation mode."""
    with torch.no_grad():
        return module_with(weights).eval().lower(x)


def fine_tuning(pick: Pick, epochs: int, rounds: int = 2) -> dict[str, Tensor]:
    """Only θ is trained, on the picked samples; θ ← Σ n_k·θ_k / Σ n with n_k picked samples."""
    model = initial()
    for number in range(rounds):
        tuned, sizes = [], []
        for device, shard in SHARDS.items():
            generator = device_context(device, number).generator("order")
            picked = pick(model, shard, generator)
            orders = [picked[torch.randperm(len(picked), generator=generator)] for _ in range(epochs)]
            maps, module = features(model, shard.x), module_with(model)
            upper = nn.Sequential(module.upper, module.head)

            def loss(upper: nn.Module, rows: Tensor, maps: Any = maps, shard: Any = shard) -> Tensor:
                return functional.cross_entropy(upper(maps[rows]), shard.y[rows])

            descend(upper, orders, loss)
            tuned.append(weights_of(module))
            sizes.append(len(picked))
        model = mean(tuned, sizes)
    return model


CACHED = pytest.mark.parametrize("cached", [False, True], ids=["features again", "features cached"])


def assert_equals_loop(method: Any, expected: Weights) -> None:
    found = simulate(method, 2)[0]["model"]
    assert_same(found, expected)
    assert all(torch.equal(found[name], initial()[name]) for name in LOWER), "the lower part is fixed"


@CACHED
def test_fedft(cached: bool) -> None:
    assert_equals_loop(
        FedFT(cache_features=cached, epochs=3), fine_tuning(lambda _, shard, __: torch.arange(len(shard)), 3)
    )


@CACHED
def test_fedft_rds(cached: bool) -> None:
    """A random fraction of the samples, drawn once a round."""

    def pick(_: Weights, shard: Shard, generator: torch.Generator) -> Tensor:
        return torch.randperm(len(shard), generator=generator)[: round(0.4 * len(shard))].sort().values

    assert_equals_loop(FedFTRDS(share=0.4, epochs=2, cache_features=cached), fine_tuning(pick, 2))


@CACHED
def test_fedft_eds(cached: bool) -> None:
    """The fraction of samples with the highest entropy of softmax(z/ρ) under the received model."""

    def pick(model: Weights, shard: Shard, _: torch.Generator) -> Tensor:
        with torch.no_grad():
            p = (module_with(model).eval()(shard.x) / 0.5).softmax(1)
        entropy = -(p * p.log()).sum(1)
        return torch.tensor(sorted(entropy.argsort(descending=True)[: round(0.4 * len(shard))].tolist()))

    assert_equals_loop(FedFTEDS(share=0.4, temperature=0.5, epochs=2, cache_features=cached), fine_tuning(pick, 2))


@pytest.mark.parametrize("selector", ["all", "kmeans"])
def test_fedsplit(selector: str) -> None:
    """The average is FedAvg's. A new θ is trained on the maps that the received φ makes of selected samples.

    PCA and K-means themselves are compared with scikit-learn in tests/learning/test_clustering.py.
    """
    method = FedSplit(
        level="mid", selector=selector, clusters=2, components=3, meta_lr=0.05, meta_epochs=3, meta_batch=6
    )
    model = initial()
    for number in range(2):
        maps, labels = [], []
        for device, shard in SHARDS.items():
            made, generator = features(model, shard.x), device_context(device, number).generator("maps")
            kept = torch.arange(len(shard))
            if selector == "kmeans":
                kept = representatives(made, shard.y, lambda size: min(size, 2), 3, generator)
            maps.append(made[kept])
            labels.append(shard.y[kept])
        x, y = torch.cat(maps), torch.cat(labels)
        fresh = module_with(TASK.model.initial(server_context(number).key("upper part")))
        upper = nn.Sequential(fresh.upper, fresh.head)

        def loss(upper: nn.Module, rows: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
            return functional.cross_entropy(upper(x[rows]), y[rows])

        orders = shuffles(server_context(number), len(x), 3)
        descend(upper, orders, loss, torch.optim.SGD(upper.parameters(), 0.05), batch=6)
        composed = {**weights_of(fresh), **{name: model[name] for name in LOWER}}
        trained = [train(model, device, device_context(device, number)) for device in SHARDS]
        model = mean(trained, [len(shard) for shard in SHARDS.values()])
    state, own = simulate(method, 2)
    models = method.models(TASK, state, own)
    assert_same(models["average"], model)
    assert_same(models["global"], composed)
