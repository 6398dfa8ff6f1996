"""Similarity of models by their features of the same samples: linear CKA, estimated batch by batch without bias.

As in Nguyen et al. 2021: CKA = Σ HSIC(K, L) / √(Σ HSIC(K, K)·Σ HSIC(L, L)) with sums over batches, the unbiased
estimate of HSIC, and K = X·Xᵀ for features X. So the result does not depend on the batch size, and the
features of all samples are never in memory at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from undergrowth.core import InputError

SMALLEST_BATCH = 4  # samples: with fewer the estimate divides by zero


def hsic(features: Sequence[Tensor]) -> Tensor:
    """Models × models: the unbiased estimate of HSIC between the features that two models have for the same samples.

    Samples come first; the models may differ in the number of their features.
    """
    count = len(features[0])
    if count < SMALLEST_BATCH:
        raise InputError(f"similarity: a batch has {count} samples; it needs at least {SMALLEST_BATCH}")
    grams = torch.stack([_centred_gram(each).flatten() for each in features])
    return grams @ grams.T / (count * (count - 3))


def cka(summed: Tensor) -> Tensor:
    """Models × models, from `hsic` summed over batches: 1 where features are the same up to rotation and scale.

    About 0 where they are unrelated; NaN for a model whose features are the same for all samples.
    """
    scale = summed.diagonal().sqrt()
    return summed / torch.outer(scale, scale)


def _centred_gram(features: Tensor) -> Tensor:
    """The Gram matrix without its diagonal, centred so that products of two such matrices estimate HSIC unbiasedly.

    The sum over all entries of A·B is tr(KL) + ΣK·ΣL / ((n−1)(n−2)) − 2·1ᵀKL1 / (n−2), for K and L without diagonal.
    """
    count, flat = len(features), features.flatten(1)
    # Centring takes out any common shift; doing it to the features first keeps digits.
    flat = flat - flat.mean(0)
    gram = (flat @ flat.T).double().fill_diagonal_(0)
    rows = gram.sum(1) / (count - 2)
    centred = gram - rows[:, None] - rows[None, :] + gram.sum() / ((count - 1) * (count - 2))
    return centred.fill_diagonal_(0)
