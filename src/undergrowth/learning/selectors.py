"""Selectors: which of its samples a device trains on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from undergrowth.core import AllSelector, InputError, Selector, Shard, Task, Weights
from undergrowth.core.notation import Form, Number, parse
from undergrowth.core.samplers import count_of
from undergrowth.learning.clustering import representatives
from undergrowth.learning.features import features_of, logits_of


@dataclass(frozen=True)
class RandomSelector(Selector):
    """A random fraction of the samples."""

    fraction: float

    def pick(self, task: Task, weights: Weights, shard: Shard, generator: torch.Generator) -> Tensor:
        count = count_selected(self.fraction, len(shard))
        return torch.randperm(len(shard), generator=generator)[:count].sort().values


@dataclass(frozen=True)
class FewShotSelector(Selector):
    """The same number of random samples of every class that the device has, drawn again each epoch."""

    needs_classes: ClassVar[bool] = True
    shots: int = 10
    again: bool = True

    def pick(self, task: Task, weights: Weights, shard: Shard, generator: torch.Generator) -> Tensor:
        labels = shard.y.cpu()
        order = torch.randperm(len(labels), generator=generator)
        shuffled = labels[order]
        drawn = [order[shuffled == label][: self.shots] for label in labels.unique()]
        return torch.cat([order[:0], *drawn]).sort().values  # order[:0]: the result for a device without samples


@dataclass(frozen=True)
class EntropySelector(Selector):
    """The fraction of samples with the highest entropy of softmax(logits / temperature)."""

    needs_classes: ClassVar[bool] = True
    fraction: float
    temperature: float = 0.1

    def pick(self, task: Task, weights: Weights, shard: Shard, generator: torch.Generator) -> Tensor:
        entropy = entropies(logits_of(task, weights, shard.x), self.temperature)
        # Logarithms in single precision resolve the smallest entropies and ignore rounding in the logits.
        return highest(entropy.log().float(), count_selected(self.fraction, len(shard)))


@dataclass(frozen=True)
class HighestLossSelector(Selector):
    """The fraction of samples with the highest loss."""

    fraction: float

    def pick(self, task: Task, weights: Weights, shard: Shard, generator: torch.Generator) -> Tensor:
        losses = task.kind.losses(logits_of(task, weights, shard.x), shard.y).means
        return highest(losses, count_selected(self.fraction, len(shard)))


@dataclass(frozen=True)
class KMeansSelector(Selector):
    """A fraction of every class: the samples nearest to the centres of its clusters, by the features at `level`."""

    needs_classes: ClassVar[bool] = True
    fraction: float
    level: str = "head"
    components: int = 200

    def pick(self, task: Task, weights: Weights, shard: Shard, generator: torch.Generator) -> Tensor:
        features = features_of(task, weights, shard.x, self.level)
        return representatives(features, shard.y, partial(count_selected, self.fraction), self.components, generator)


_FRACTION = Number("FRACTION", above=0, at_most=1)
_TEMPERATURE = Number("TEMPERATURE", above=0, at_most=1e9, default=0.1)
_SHOTS = Number("N", at_least=1, at_most=1e9, whole=True)
SELECTORS: dict[str, tuple[Callable[..., Selector], Form]] = {
    "all": (AllSelector, Form()),
    "random": (RandomSelector, Form((_FRACTION,), "random:0.5")),
    "entropy": (EntropySelector, Form((_FRACTION, _TEMPERATURE), "entropy:0.1:0.1")),
    "loss": (HighestLossSelector, Form((_FRACTION,), "loss:0.5")),
    "kmeans": (KMeansSelector, Form((_FRACTION,), "kmeans:0.1")),
    "few-shot": (FewShotSelector, Form((_SHOTS,), "few-shot:10")),
}


def build_selector(text: str) -> Selector:
    """The selector that `train.selector` names.

    all, random:FRACTION, entropy:FRACTION[:TEMPERATURE], loss:FRACTION, kmeans:FRACTION or few-shot:N.
    """
    name, numbers = parse("train.selector", text, {name: form for name, (_, form) in SELECTORS.items()})
    return SELECTORS[name][0](*numbers)


def entropies(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """−Σ p·log p with p = softmax(logits / temperature), for every sample.

    In double precision: in single precision the entropy of every confident prediction rounds to zero.
    """
    entropy: Tensor = torch.special.entr((logits.double() / temperature).softmax(-1)).sum(-1)
    return entropy


def highest(scores: Tensor, count: int) -> Tensor:
    """Positions of the `count` highest scores, in ascending order. Of equal scores the earlier sample wins."""
    return scores.cpu().sort(descending=True, stable=True).indices[:count].sort().values


def count_selected(fraction: float, total: int) -> int:
    """The number of samples that `fraction` of `total` is: at least one, if there is any."""
    if not 0 < fraction <= 1:
        raise InputError(f"fraction {fraction} must be above 0 and at most 1")
    return count_of(fraction, total)
