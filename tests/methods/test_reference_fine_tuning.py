"""FedFT with its data selection, and FedSplit, against plain loops of the thesis' equations (chapter 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.methods import tiny_federation as tiny
from undergrowth.core import Shard
from undergrowth.methods import FedFT, FedFTEDS, FedFTRDS, FedSplit

LOWER = [name for name in tiny.TASK.model.shapes if name.startswith("lower")]
Pick = Callable[[tiny.Weights, Shard, torch.Generator], Tensor]  # positions of the samples that a device trains on


def features(weights: tiny.Weights, x: Tensor) -> Tensor:
    """φ(x), in evaluation mode."""
    with torch.no_grad():
        return tiny.module_with(weights).eval().lower(x)


def fine_tuning(pick: Pick, epochs: int) -> dict[str, Tensor]:
    """Only θ is trained, on the picked samples; θ ← Σ n_k·θ_k / Σ n with n_k picked samples."""
    model = tiny.initial()
    for number in range(2):
        tuned, sizes = [], []
        for device, shard in tiny.SHARDS.items():
            generator = tiny.device_context(device, number).generator("order")
            picked = pick(model, shard, generator)
            orders = [picked[torch.randperm(len(picked), generator=generator)] for _ in range(epochs)]
            maps, module = features(model, shard.x), tiny.module_with(model)
            upper = nn.Sequential(module.upper, module.head)

            def loss(upper: nn.Module, rows: Tensor, maps: Any = maps, shard: Any = shard) -> Tensor:
                return functional.cross_entropy(upper(maps[rows]), shard.y[rows])

            tiny.descend(upper, orders, loss)
            tuned.append(tiny.weights_of(module))
            sizes.append(len(picked))
        model = tiny.mean(tuned, sizes)
    return model


CACHED = pytest.mark.parametrize("cached", [False, True], ids=["features again", "features cached"])


def assert_equals_loop(method: Any, expected: tiny.Weights) -> None:
    found = tiny.simulate(method, 2)[0]["model"]
    tiny.assert_same(found, expected)
    assert all(torch.equal(found[name], tiny.initial()[name]) for name in LOWER), "the lower part is fixed"


@CACHED
def test_fedft(cached: bool) -> None:
    assert_equals_loop(
        FedFT(cache_features=cached, epochs=3), fine_tuning(lambda _, shard, __: torch.arange(len(shard)), 3)
    )


@CACHED
def test_fedft_rds(cached: bool) -> None:
    """A random fraction of the samples, drawn once a round."""

    def pick(_: tiny.Weights, shard: Shard, generator: torch.Generator) -> Tensor:
        return torch.randperm(len(shard), generator=generator)[: round(0.4 * len(shard))].sort().values

    assert_equals_loop(FedFTRDS(share=0.4, epochs=2, cache_features=cached), fine_tuning(pick, 2))


@CACHED
def test_fedft_eds(cached: bool) -> None:
    """The fraction of samples with the highest entropy of softmax(z/ρ) under the received model."""

    def pick(model: tiny.Weights, shard: Shard, _: torch.Generator) -> Tensor:
        with torch.no_grad():
            p = (tiny.module_with(model).eval()(shard.x) / 0.5).softmax(1)
        entropy = -(p * p.log()).sum(1)
        return torch.tensor(sorted(entropy.argsort(descending=True)[: round(0.4 * len(shard))].tolist()))

    assert_equals_loop(FedFTEDS(share=0.4, temperature=0.5, epochs=2, cache_features=cached), fine_tuning(pick, 2))


def nearest_to_centres(maps: Tensor, clusters: int, components: int, generator: torch.Generator) -> list[int]:
    """PCA by singular vectors, K-means++ and Lloyd's steps one by one: the first of the maps nearest to each centre."""
    left, singular, _ = torch.linalg.svd(maps - maps.mean(0), full_matrices=False)
    points = (left * singular)[:, :components]

    def gap(place: int, centre: Tensor) -> float:
        return round(float((points[place] - centre).square().sum()), 9)  # of two maps, both are equally near

    drawn = [int(torch.randint(len(points), (1,), generator=generator))]
    while len(drawn) < clusters:
        gaps = torch.tensor([min(gap(place, points[each]) for each in drawn) for place in range(len(points))])
        drawn.append(int(torch.multinomial(gaps, 1, generator=generator)))
    centres = [points[place] for place in drawn]
    for _ in range(20):
        nearest = [
            min(range(clusters), key=lambda c, place=place: gap(place, centres[c])) for place in range(len(points))
        ]
        members = [[place for place, own in enumerate(nearest) if own == cluster] for cluster in range(clusters)]
        centres = [points[own].mean(0) for own in members]
    return [min(own, key=lambda place: gap(place, centre)) for own, centre in zip(members, centres, strict=True)]


def selected(maps: Tensor, labels: Tensor, clusters: int, components: int, generator: torch.Generator) -> list[int]:
    """For every class the maps nearest to the centres of its clusters; all maps if there are no more than clusters."""
    kept: list[int] = []
    for label in range(3):
        rows = [place for place, own in enumerate(labels.tolist()) if own == label]
        few = len(rows) <= clusters
        places = range(len(rows)) if few else nearest_to_centres(maps[rows], clusters, components, generator)
        kept += [rows[place] for place in places]
    return sorted(kept)


@pytest.mark.parametrize(("selector", "components"), [("all", 3), ("kmeans", 3), ("kmeans", 1)])
def test_fedsplit(selector: str, components: int) -> None:
    """The average is FedAvg's. A new θ is trained on the maps that the received φ makes of selected samples."""
    method = FedSplit(
        level="mid", selector=selector, clusters=2, components=components, meta_lr=0.05, meta_epochs=3, meta_batch=6
    )
    model = tiny.initial()
    for number in range(2):
        maps, labels = [], []
        for device, shard in tiny.SHARDS.items():
            made, generator = features(model, shard.x), tiny.device_context(device, number).generator("maps")
            kept = list(range(len(shard)))
            if selector == "kmeans":
                kept = selected(made, shard.y, 2, components, generator)
            maps.append(made[kept])
            labels.append(shard.y[kept])
        x, y = torch.cat(maps), torch.cat(labels)
        fresh = tiny.module_with(tiny.TASK.model.initial(tiny.server_context(number).key("upper part")))
        upper = nn.Sequential(fresh.upper, fresh.head)

        def loss(upper: nn.Module, rows: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
            return functional.cross_entropy(upper(x[rows]), y[rows])

        orders = tiny.shuffles(tiny.server_context(number), len(x), 3)
        tiny.descend(upper, orders, loss, torch.optim.SGD(upper.parameters(), 0.05), batch=6)
        composed = {**tiny.weights_of(fresh), **{name: model[name] for name in LOWER}}
        trained = [tiny.train(model, device, tiny.device_context(device, number)) for device in tiny.SHARDS]
        model = tiny.mean(trained, [len(shard) for shard in tiny.SHARDS.values()])
    state, own = tiny.simulate(method, 2)
    models = method.models(tiny.TASK, state, own)
    tiny.assert_same(models["average"], model)
    tiny.assert_same(models["global"], composed)
