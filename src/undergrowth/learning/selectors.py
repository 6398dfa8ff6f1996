"""Selectors: on which of its samples a device trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.core import All, InputError, Selector, Shard, Task, Weights, nearest
from undergrowth.learning.clustering import representatives
from undergrowth.learning.features import EVALUATION_BATCH, features_of


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
        entropy = entropies(predictions(task, weights, shard), self.temperature)
        # As logarithms in single precision: they tell the smallest apart, and a last digit of the logits not at all.
        return highest(entropy.log().float(), share_of(self.share, len(shard)))


@dataclass(frozen=True)
class HighestLoss(Selector):
    """The share of samples with the highest loss."""

    share: float

    def pick(self, task: Task, weights: Weights, shard: Shard, generator: torch.Generator) -> Tensor:
        losses = F.cross_entropy(predictions(task, weights, shard), shard.y, reduction="none")
        return highest(losses, share_of(self.share, len(shard)))


@dataclass(frozen=True)
class KMeans(Selector):
    """A share of every class: those nearest to the centres of its clusters, by the features at `level`."""

    share: float
    level: str = "head"
    components: int = 200

    def pick(self, task: Task, weights: Weights, shard: Shard, generator: torch.Generator) -> Tensor:
        features = features_of(task, weights, shard.x, self.level)
        return representatives(features, shard.y, partial(share_of, self.share), self.components, generator)


SHARE = "with a share above 0 and at most 1"
TEMPERATURE = "a temperature above 0 and at most 1000000000"
# What can be written → the selector, how it is written, and how many numbers it takes.
NAMES: dict[str, tuple[Callable[..., Selector], str, Container[int]]] = {
    "all": (All, "all", (0,)),
    "random": (Random, f"random:SHARE {SHARE}", (1,)),
    "entropy": (Entropy, f"entropy:SHARE or entropy:SHARE:TEMPERATURE {SHARE} and {TEMPERATURE}", (1, 2)),
    "loss": (HighestLoss, f"loss:SHARE {SHARE}", (1,)),
    "kmeans": (KMeans, f"kmeans:SHARE {SHARE}", (1,)),
    "few-shot": (FewShot, "few-shot:N with a whole number of samples of at least 1 and at most 1000000000", (1,)),
}


def selector(text: str) -> Selector:
    """all, random:SHARE, entropy:SHARE[:TEMPERATURE], loss:SHARE, kmeans:SHARE or few-shot:N, by name."""
    kind, *texts = text.split(":")
    if kind not in NAMES:
        raise InputError(f"train.selector '{text}' is not known; {nearest(kind, NAMES)}")
    make, wanted, counts = NAMES[kind]
    try:
        numbers = [int(number) if kind == "few-shot" else float(number) for number in texts]
    except ValueError:
        numbers = [math.nan]
    most = (1e9 if kind == "few-shot" else 1.0, 1e9)  # of the first number, which else is a share, and of the second
    if len(numbers) not in counts or not all(0 < number <= limit for number, limit in zip(numbers, most)):
        raise InputError(f"train.selector '{text}' must be {wanted}")
    return make(*numbers)


def predictions(task: Task, weights: Weights, shard: Shard) -> Tensor:
    """The model's logits for all samples, in evaluation mode."""
    with torch.no_grad():
        return torch.cat([task.model(weights, x) for x in shard.x.split(EVALUATION_BATCH)])


def entropies(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """−Σ p·log p with p = softmax(logits / temperature), for every sample.

    In double precision: in single, all samples that a model is sure of would have none, and nothing ranked them.
    """
    return torch.special.entr((logits.double() / temperature).softmax(-1)).sum(-1)


def highest(scores: Tensor, count: int) -> Tensor:
    """Positions of the highest scores, in ascending order; among equal ones the earlier sample wins."""
    return scores.cpu().sort(descending=True, stable=True).indices[:count].sort().values


def share_of(share: float, count: int) -> int:
    """How many samples a share is: at least one, if there is any."""
    if not 0 < share <= 1:
        raise InputError(f"share {share} must lie above 0 and at most at 1")
    return min(count, max(1, round(share * count)))
