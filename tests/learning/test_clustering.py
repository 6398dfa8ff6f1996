"""Principal components and K-means against scikit-learn, and which samples stand for a class."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from torch import Tensor

from undergrowth.data import load
from undergrowth.learning.clustering import k_means, nearest_to_centres, principal, representatives


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def threes() -> Tensor:
    data = load("digits", None)
    return torch.as_tensor(data.x)[torch.as_tensor(data.y) == 3]


def distances(points: Tensor) -> Tensor:
    return torch.cdist(points.double(), points.double())


@pytest.mark.parametrize(("rows", "components"), [(146, 20), (146, 64), (40, 10), (40, 200)])
def test_points_lie_as_scikit_learn_puts_them(threes: Tensor, rows: int, components: int) -> None:
    some = threes[:rows]
    ours, most = principal(some, components), min(components, rows, 64)
    assert ours.shape == (rows, most)
    theirs = torch.from_numpy(PCA(most).fit_transform(some.flatten(1).numpy()))
    scale = distances(theirs).max() / distances(ours).max()  # ours are divided by the largest value
    torch.testing.assert_close(distances(ours) * scale, distances(theirs), rtol=1e-3, atol=1e-3)


def inertia(points: Tensor, centres: Tensor) -> float:
    return float(torch.cdist(points, centres).amin(1).square().sum())


def test_clusters_are_as_tight_as_those_of_scikit_learn(threes: Tensor) -> None:
    points = principal(threes, 20)
    ours = [inertia(points, k_means(points, 10, generator(seed))) for seed in range(10)]
    theirs = [KMeans(10, n_init=1, random_state=seed).fit(points.numpy()).inertia_ for seed in range(10)]
    assert np.mean(ours) < 1.05 * np.mean(theirs)
    random = [inertia(points, points[torch.randperm(len(points), generator=generator(s))[:10]]) for s in range(10)]
    assert np.mean(ours) < 0.8 * np.mean(random)


def test_centres_stand_still_at_the_end(threes: Tensor) -> None:
    points = principal(threes, 20)
    centres = k_means(points, 8, generator())
    member = torch.cdist(points, centres).argmin(1)
    means = torch.stack([points[member == cluster].mean(0) for cluster in range(8)])
    torch.testing.assert_close(centres, means, rtol=1e-4, atol=1e-5)


def test_of_each_cluster_the_point_nearest_to_its_centre(threes: Tensor) -> None:
    points = principal(threes, 20)
    picked = nearest_to_centres(points, 8, generator(4))
    apart = torch.cdist(points, k_means(points, 8, generator(4)))
    member = apart.argmin(1)
    expected = [min((member == c).nonzero().flatten().tolist(), key=lambda at: float(apart[at, c])) for c in range(8)]
    assert picked.tolist() == sorted(expected)


def test_two_clouds_are_told_apart() -> None:
    clouds = torch.cat([torch.randn(40, 6, generator=generator()), 50 + torch.randn(30, 6, generator=generator(1))])
    for seed in range(5):
        low, high = representatives(clouds, torch.zeros(70).long(), lambda _: 2, 200, generator(seed)).tolist()
        assert low < 40 <= high


def test_every_class_by_itself_and_small_ones_whole() -> None:
    labels = torch.tensor([1] * 30 + [4] * 3 + [0] * 12 + [2])
    features = torch.randn(46, 2, 3, 3, generator=generator())
    kept = representatives(features, labels, lambda count: min(count, 5), 200, generator())
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert torch.bincount(labels[kept], minlength=5).tolist() == [5, 5, 1, 0, 3]


@pytest.mark.parametrize(
    "features",
    [
        torch.zeros(30, 4),
        torch.full((30, 4), 7.5),
        torch.cat([torch.ones(25, 4), torch.zeros(5, 4)]),
        torch.full((30, 4), float("nan")),
        torch.full((30, 4), float("inf")),
        1e38 * torch.randn(30, 4, generator=generator()),
    ],
    ids=["zero", "constant", "two values", "nan", "infinite", "huge"],
)
def test_features_that_have_no_clusters_give_as_many_samples(features: Tensor) -> None:
    kept = representatives(features, torch.zeros(30).long(), lambda count: min(count, 20), 200, generator())
    assert len(kept.unique()) == len(kept) == 20


def test_points_that_coincide_leave_no_value_out() -> None:
    features = torch.cat([torch.ones(25, 4), torch.zeros(5, 4)])
    for seed in range(5):
        kept = representatives(features, torch.zeros(30).long(), lambda _: 6, 200, generator(seed))
        assert (kept < 25).any() and (kept >= 25).any()


def test_the_same_generator_gives_the_same(threes: Tensor) -> None:
    labels = torch.zeros(len(threes)).long()
    first, again, other = (representatives(threes, labels, lambda _: 9, 50, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    state = torch.random.get_rng_state()
    representatives(threes, labels, lambda _: 9, 50, generator())
    assert torch.equal(torch.random.get_rng_state(), state)
