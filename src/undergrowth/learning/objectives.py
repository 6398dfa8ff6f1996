"""Objectives: loss terms that add up, ``CrossEntropy() + 0.5 * Proximal(0.1)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.core import Batch, Output, Task, Weights


@dataclass(frozen=True)
class Look:
    """What a loss term may look at: one batch, what the model made of it, and the weights of the moment."""

    task: Task
    batch: Batch
    output: Output
    trained: Mapping[str, Tensor]  # the parameters being trained
    received: Weights  # the weights as the device got them


class Objective:
    """A term of the loss. `maps` names the levels whose feature maps it wants in ``look.output.maps``."""

    maps: Sequence[str] = ()

    def __call__(self, look: Look) -> Tensor:
        raise NotImplementedError("an objective defines __call__(look)")

    def __add__(self, other: Objective) -> Objective:
        return Total((*_terms(self), *_terms(other)))

    def __rmul__(self, factor: float) -> Objective:
        return Scaled(factor, self)


@dataclass(frozen=True)
class Total(Objective):
    terms: tuple[Objective, ...]

    @property
    def maps(self) -> Sequence[str]:  # type: ignore[override]
        return tuple(dict.fromkeys(level for term in self.terms for level in term.maps))

    def __call__(self, look: Look) -> Tensor:
        loss = self.terms[0](look)
        for term in self.terms[1:]:
            loss = loss + term(look)
        return loss


@dataclass(frozen=True)
class Scaled(Objective):
    factor: float
    term: Objective

    @property
    def maps(self) -> Sequence[str]:  # type: ignore[override]
        return self.term.maps

    def __call__(self, look: Look) -> Tensor:
        return self.factor * self.term(look)


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Mean cross-entropy of the batch's labels."""

    def __call__(self, look: Look) -> Tensor:
        return F.cross_entropy(look.output.logits, look.batch["y"])


@dataclass(frozen=True)
class Proximal(Objective):
    """(μ/2)·‖w − received‖² over the trained parameters."""

    mu: float

    def __call__(self, look: Look) -> Tensor:
        pairs = [(value, look.received[name]) for name, value in look.trained.items()]
        return self.mu / 2 * torch.stack([(value - start).pow(2).sum() for value, start in pairs]).sum()


def _terms(objective: Objective) -> tuple[Objective, ...]:
    return objective.terms if isinstance(objective, Total) else (objective,)
