"""Clustering: which samples of a class stand for all of it, by principal components and K-means.

All of it is plain tensor arithmetic with a number of steps that hangs on shapes alone, so its products of matrices
are in the price of whoever clusters. (Eigenvectors are not: torch has no count for them.) scikit-learn's would have
no price, and its sums differ in the last bits with the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

ITERATIONS = 20  # of K-means; the centres of a few hundred samples stand still by then
NEARLY = 1.001  # distances that differ by less are taken to be the same


def representatives(
    features: Tensor, labels: Tensor, count: Callable[[int], int], components: int, generator: torch.Generator
) -> Tensor:
    """Positions of the samples that stand for their class, in ascending order: `count(n)` of the n of each class.

    A class is made into `count(n)` clusters of its principal components, and of each cluster the sample nearest to
    the centre is kept; a class with no more samples than clusters keeps them all.
    """
    labels = labels.cpu()
    kept = [torch.arange(0)]  # so that a device without samples keeps none
    for label in labels.unique():
        places = (labels == label).nonzero().flatten()
        wanted = count(len(places))
        if wanted < len(places):
            points = principal(features[places.to(features.device)], components)
            places = places[nearest_to_centres(points.cpu(), wanted, generator)]
        kept.append(places)
    return torch.cat(kept).sort().values


def principal(rows: Tensor, components: int) -> Tensor:
    """The rows by their first principal components, at most as many as there are rows or columns.

    What is not finite counts as 0: a device whose model has blown up is refused by what it sends, not by this.
    """
    rows = rows.flatten(1).float().nan_to_num(0, 0, 0)
    rows = rows / rows.abs().amax().clamp_min(torch.finfo(rows.dtype).tiny)  # the largest is 1: no square overflows
    centred = rows - rows.mean(0)
    count, width = centred.shape
    # The smaller of the two products of the rows with themselves has the same information.
    if count <= width:
        values, vectors = torch.linalg.eigh(centred @ centred.T)
        return vectors[:, -components:] * values[-components:].clamp_min(0).sqrt()
    _, vectors = torch.linalg.eigh(centred.T @ centred)
    return centred @ vectors[:, -components:]


def nearest_to_centres(points: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """For each of so many clusters the position of the point nearest to its centre, no point twice.

    Of points that are as near the first is taken: both of a cluster of two are, and the last bit must not decide. Where
    points coincide there may be fewer clusters; the first of the other points make up for those.
    """
    if points.is_meta:  # Nothing can be told apart. For the price, as many products as K-means has, of the same size.
        many = points.expand(2 * ITERATIONS + 1, *points.shape)
        _ = many @ many[:, :clusters].mT
        return torch.arange(clusters)
    centres = k_means(points, clusters, generator)
    cluster = _closest(points, centres)
    outside = F.one_hot(cluster, clusters) == 0
    apart = (points - centres[cluster]).square().sum(1)[:, None].masked_fill(outside, torch.inf)
    first = (apart <= NEARLY * apart.amin(0)).float().argmax(0)
    chosen = torch.zeros(len(points)).index_add(0, first, (~outside).any(0).float()) > 0
    return chosen.float().sort(stable=True, descending=True).indices[:clusters].sort().values


def k_means(points: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """The centres of K-means, from k-means++ (Arthur and Vassilvitskii 2007): far from each other at the start."""
    drawn = [torch.randint(len(points), (1,), generator=generator)]
    gaps = torch.full((len(points),), torch.inf)
    for _ in range(clusters - 1):
        gaps = torch.minimum(gaps, (points - points[drawn[-1]]).square().sum(1))
        # Where all points are at a centre already, all are as likely.
        drawn.append(torch.multinomial(gaps + torch.finfo(gaps.dtype).tiny, 1, generator=generator))
    centres = points[torch.cat(drawn)]
    for _ in range(ITERATIONS):
        members = F.one_hot(_closest(points, centres), clusters).to(points.dtype)
        sizes = members.sum(0)[:, None]
        centres = torch.where(sizes > 0, members.T @ points / sizes.clamp_min(1), centres)
    return centres


def _closest(points: Tensor, centres: Tensor) -> Tensor:
    # ‖p − c‖² without ‖p‖², which is the same for all centres.
    return (centres.square().sum(1) - 2 * points @ centres.T).argmin(1)
