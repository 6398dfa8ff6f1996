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
    """What a loss term may look at: one batch, what the model made of it, and the weights of the moment.

    An engine may compute many clients at once. Their samples then stand in one long batch, parameters have the client
    as their first dimension, and a term is one number for each client. A term that uses `mean` and `total`
    instead of the tensors' own is right in both cases.
    """

    task: Task
    batch: Batch
    output: Output
    trained: Mapping[str, Tensor]  # the parameters being trained
    received: Weights  # the weights as the device got them
    clients: int | None = None  # computed at once; None: one, without a dimension for it

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the samples of a batch, of one value for each."""
        if self.clients is None:
            return values.mean()
        # `share` is 1 / (samples of that client's batch), and 0 for samples that only fill up the stack.
        return (values * self.batch["share"]).reshape(self.clients, -1).sum(1)

    def total(self, values: Tensor) -> Tensor:
        """The sum over all values of a parameter."""
        return values.sum() if self.clients is None else values.flatten(1).sum(1)


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
        if look.clients is None:
            return F.cross_entropy(look.output.logits, look.batch["y"])
        return look.mean(F.cross_entropy(look.output.logits, look.batch["y"], reduction="none"))


@dataclass(frozen=True)
class Proximal(Objective):
    """(μ/2)·‖w − received‖² over the trained parameters."""

    mu: float

    def __call__(self, look: Look) -> Tensor:
        pairs = [(value, look.received[name]) for name, value in look.trained.items()]
        return self.mu / 2 * torch.stack([look.total((value - start).pow(2)) for value, start in pairs]).sum(0)


def _terms(objective: Objective) -> tuple[Objective, ...]:
    return objective.terms if isinstance(objective, Total) else (objective,)
