"""Selectors: on which of its samples a device trains."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.core import InputError, Shard, Task, Weights

EVALUATION_BATCH = 512  # samples in one forward pass when nothing is trained


class Selector:
    """`again`: pick anew in every epoch rather than once."""

    again: bool = False

    def pick(self, task: Task, weights: Weights, shard: Shard, generator: torch.Generator) -> Tensor:
        """Positions of the chosen samples."""
        raise NotImplementedError("a selector defines pick")


@dataclass(frozen=True)
class All(Selector):
    def pick(self, task: Task, weights: Weights, shard: Shard, generator: torch.Generator) -> Tensor:
        return torch.arange(len(shard))


@dataclass(frozen=True)
class Random(Selector):
    """A random share of the samples."""

    share: float

    def pick(self, task: Task, weights: Weights, shard: Shard, generator: torch.Generator) -> Tensor:
        return torch.randperm(len(shard), generator=generator)[: share_of(self.share, len(shard))].sort().values


@dataclass(frozen=True)
class FewShot(Selector):
    """The same number of random samples of every class that the device has, drawn again each epoch."""

    shots: int = 10
    again: bool = True

    def pick(self, task: Task, weights: Weights, shard: Shard, generator: torch.Generator) -> Tensor:
        labels = shard.y.cpu()
        order = torch.randperm(len(labels), generator=generator)
        shuffled = labels[order]
        drawn = [order[shuffled == label][: self.shots] for label in labels.unique()]
        return torch.cat([order[:0], *drawn]).sort().values  # the first so that a device without samples draws none


@dataclass(frozen=True)
class Entropy(Selector):
    """The share of samples of which the model is least certain: highest entropy of softmax(logits / temperature)."""

    share: float
    temperature: float = 0.1

    def pick(self, task: Task, weights: Weights, shard: Shard, generator: torch.Generator) -> Tensor:
        scaled = predictions(task, weights, shard) / self.temperature
        entropy = torch.special.entr(scaled.softmax(-1)).sum(-1)
        return highest(entropy, share_of(self.share, len(shard)))


@dataclass(frozen=True)
class HighestLoss(Selector):
    """The share of samples with the highest loss."""

    share: float

    def pick(self, task: Task, weights: Weights, shard: Shard, generator: torch.Generator) -> Tensor:
        losses = F.cross_entropy(predictions(task, weights, shard), shard.y, reduction="none")
        return highest(losses, share_of(self.share, len(shard)))


def predictions(task: Task, weights: Weights, shard: Shard) -> Tensor:
    """The model's logits for all samples, in evaluation mode."""
    with torch.no_grad():
        return torch.cat([task.model(weights, x) for x in shard.x.split(EVALUATION_BATCH)])


def highest(scores: Tensor, count: int) -> Tensor:
    """Positions of the highest scores, in ascending order; among equal ones the earlier sample wins."""
    return scores.cpu().sort(descending=True, stable=True).indices[:count].sort().values


def share_of(share: float, count: int) -> int:
    """How many samples a share is: at least one, if there is any."""
    if not 0 < share <= 1:
        raise InputError(f"share {share} must lie above 0 and at most at 1")
    return min(count, max(1, round(share * count)))
