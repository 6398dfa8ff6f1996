"""Prototypes: the mean map of every class, which a device can send instead of the maps of its samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.core import Shard, Task, Weights
from undergrowth.learning.features import features_of
from undergrowth.learning.objectives import Look, Objective


def prototypes_of(task: Task, weights: Weights, shard: Shard, level: str) -> tuple[Tensor, Tensor]:
    """Classes × map: the mean of the maps at `level` of each class, and how many samples each has.

    A class without samples has zeros, and a count of 0.
    """
    counts = torch.zeros(task.classes, device=shard.x.device)
    sums: Tensor | None = None
    # In the batches of training: a device that can train then has the memory for this too.
    for x, y in zip(shard.x.split(task.train.batch), shard.y.split(task.train.batch)):
        maps = features_of(task, weights, x, level)
        sums = maps.new_zeros(task.classes, *maps.shape[1:]) if sums is None else sums
        sums = sums.index_add(0, y, maps)
        counts = counts.index_add(0, y, torch.ones_like(y, dtype=counts.dtype))
    if sums is None:
        raise ValueError("there are no samples to make prototypes of")
    return sums / counts.clamp_min(1).reshape(-1, *[1] * (sums.dim() - 1)), counts


def mean_prototypes(sent: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The mean prototype of every class over those who have it, and the classes that somebody has.

    sent: prototypes and counts. Who has a class counts alike; who does not have it is left out of its mean.
    """
    pairs = list(sent)
    has = torch.stack([counts for _, counts in pairs]) > 0
    maps = torch.stack([each for each, _ in pairs])
    there = has.any(0)
    weights = has.to(maps.dtype) / has.sum(0).clamp_min(1)
    mean = torch.einsum("dc,dc...->c...", weights, maps)
    return mean[there], there.nonzero().flatten()


@dataclass(frozen=True, eq=False)
class PrototypeLoss(Objective):
    """Mean cross-entropy of the part above `level` on the prototypes.

    That part runs in evaluation mode: a few means must not become the statistics of its BatchNorm layers.
    """

    level: str
    prototypes: Tensor
    classes: Tensor

    def __call__(self, look: Look) -> Tensor:
        weights = {**look.received, **look.output.buffers, **look.trained}
        logits = look.task.model.run(weights, self.prototypes, start=self.level).logits
        return F.cross_entropy(logits, self.classes)
