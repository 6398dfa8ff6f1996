"""Clustering: representative samples of each class, by principal components and K-means.

Everything is plain tensor arithmetic with a number of steps that depends only on shapes, so its matrix products are
counted in the price of a job. (Eigenvectors are not: torch has no FLOP formula for them.) scikit-learn's versions could
not be priced, and their sums depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

ITERATIONS = 20  # of K-means; enough for the centres of a few hundred samples to converge
SAME_DISTANCE = 1.001  # distances within this factor count as equal


def representatives(
    features: Tensor, labels: Tensor, count: Callable[[int], int], components: int, generator: torch.Generator
) -> Tensor:
    """Positions of the representative samples, in ascending order: `count(n)` for each class of n samples.

    The principal components of a class are divided into `count(n)` clusters, and the sample nearest to the centre of
    each cluster is kept. A class with no more samples than clusters keeps all of them.
    """
    labels = labels.cpu()
    kept = [torch.arange(0)]  # the result for a device without samples
    for label in labels.unique():
        positions = (labels == label).nonzero().flatten()
        clusters = count(len(positions))
        if clusters < len(positions):
            points = principal(features[positions.to(features.device)], components)
            positions = positions[nearest_to_centres(points.cpu(), clusters, generator)]
        kept.append(positions)
    return torch.cat(kept).sort().values


def principal(rows: Tensor, components: int) -> Tensor:
    """The first principal components of the rows, at most as many as there are rows or columns.

    Values that are not finite count as 0. The upload of a device whose model diverged is refused later.
    """
    rows = rows.flatten(1).float().nan_to_num(0, 0, 0)
    rows = rows / rows.abs().amax().clamp_min(torch.finfo(rows.dtype).tiny)  # the largest is 1: no square overflows
    centred = rows - rows.mean(0)
    count, width = centred.shape
    # The smaller of the two Gram matrices has the same information.
    if count <= width:
        values, vectors = torch.linalg.eigh(centred @ centred.T)
        scaled: Tensor = vectors[:, -components:] * values[-components:].clamp_min(0).sqrt()
        return scaled
    _, vectors = torch.linalg.eigh(centred.T @ centred)
    projected: Tensor = centred @ vectors[:, -components:]
    return projected


def nearest_to_centres(points: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """Positions of the points nearest to the centres of `clusters` clusters, each at most once.

    Of equally near points the first is taken: in a cluster of two both are equally near, and rounding must not decide.
    If points coincide there may be fewer clusters; the first of the other points fill the gap.
    """
    if points.is_meta:  # There are no values to cluster. For the price, do the same number of products as K-means.
        many = points.expand(2 * ITERATIONS + 1, *points.shape)
        _ = many @ many[:, :clusters].mT
        return torch.arange(clusters)
    centres = k_means(points, clusters, generator)
    cluster = nearest_centres(points, centres)
    outside = F.one_hot(cluster, clusters) == 0
    distances = (points - centres[cluster]).square().sum(1)[:, None].masked_fill(outside, torch.inf)
    first = (distances <= SAME_DISTANCE * distances.amin(0)).float().argmax(0)
    chosen = torch.zeros(len(points)).index_add(0, first, (~outside).any(0).float()) > 0
    return chosen.float().sort(stable=True, descending=True).indices[:clusters].sort().values


def k_means(points: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """The centres of K-means, initialised by k-means++ (Arthur and Vassilvitskii 2007)."""
    drawn = [torch.randint(len(points), (1,), generator=generator)]
    gaps = torch.full((len(points),), torch.inf)
    for _ in range(clusters - 1):
        gaps = torch.minimum(gaps, (points - points[drawn[-1]]).square().sum(1))
        # `tiny` makes all points equally likely if every point is already a centre.
        drawn.append(torch.multinomial(gaps + torch.finfo(gaps.dtype).tiny, 1, generator=generator))
    centres = points[torch.cat(drawn)]
    for _ in range(ITERATIONS):
        members = F.one_hot(nearest_centres(points, centres), clusters).to(points.dtype)
        sizes = members.sum(0)[:, None]
        centres = torch.where(sizes > 0, members.T @ points / sizes.clamp_min(1), centres)
    return centres


def nearest_centres(points: Tensor, centres: Tensor) -> Tensor:
    """The number of the nearest centre of each point."""
    # ‖p − c‖² without ‖p‖², which is the same for all centres.
    return (centres.square().sum(1) - 2 * points @ centres.T).argmin(1)
