"""Objectives: loss terms that can be added and scaled, ``TaskLoss() + 0.5 * Proximal(0.1)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.core import (
    Batch,
    Carry,
    Classification,
    InputError,
    MultiLabel,
    Output,
    Regression,
    Steps,
    Task,
    TaskKind,
    Weights,
)
from undergrowth.core.client import Loop
from undergrowth.core.names import WEIGHT, Y

if TYPE_CHECKING:
    from undergrowth.learning.gradient_client import GradientClient

SLOPE = "slope/"  # prefix of names in `LossInputs.received`: what `Linear` adds to the gradient of a parameter


@dataclass(frozen=True)
class LossInputs:
    """What a loss term may use: one batch, the model's output for it, and the current weights.

    An engine may compute many clients at once. Their samples are then concatenated into one long batch, parameters
    have the client as their first dimension, and a term has one value per client. A term that uses `mean` and
    `total` instead of `Tensor.mean` and `Tensor.sum` is correct in both cases.
    """

    task: Task
    batch: Batch
    output: Output
    trained: Mapping[str, Tensor]  # the parameters in training
    received: Weights  # the weights that training started from, and what `GradientClient.start` added to them
    clients: int | None = None  # number of clients computed at once; None: one, without a dimension for it

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the samples of a batch, of one value per sample."""
        if self.clients is None:
            return values.mean()
        # A sample's weight is 1 / (size of its client's batch), and 0 for samples that only pad the stack.
        return (values * self.batch[WEIGHT]).reshape(self.clients, -1).sum(1)

    def total(self, values: Tensor) -> Tensor:
        """The sum over all values of a parameter."""
        return values.sum() if self.clients is None else values.flatten(1).sum(1)


class Objective:
    """A term of the loss."""

    @property
    def maps(self) -> Sequence[str]:
        """Levels whose feature maps the term needs in ``inputs.output.maps``."""
        return ()

    def with_inputs(self, task: Task, steps: Steps, received: Weights) -> Steps:
        """The steps of a device with what the term needs of each sample, such as the logits of the received model."""
        return steps

    def before_steps(self, client: GradientClient, task: Task, loops: Sequence[Loop]) -> list[Carry]:
        """The carries of several jobs of `client` with what the term needs in ``carry["received"]``."""
        return [loop.carry for loop in loops]

    def __call__(self, inputs: LossInputs) -> Tensor:
        raise NotImplementedError("an objective defines __call__(inputs)")

    def __add__(self, other: Objective) -> Objective:
        return Total((*_terms(self), *_terms(other)))

    def __rmul__(self, factor: float) -> Objective:
        return Scaled(factor, self)


@dataclass(frozen=True)
class Total(Objective):
    """The sum of several terms."""

    terms: tuple[Objective, ...]

    @property
    def maps(self) -> Sequence[str]:
        return tuple(dict.fromkeys(level for term in self.terms for level in term.maps))

    def with_inputs(self, task: Task, steps: Steps, received: Weights) -> Steps:
        for term in self.terms:
            steps = term.with_inputs(task, steps, received)
        return steps

    def before_steps(self, client: GradientClient, task: Task, loops: Sequence[Loop]) -> list[Carry]:
        for term in self.terms:
            carries = term.before_steps(client, task, loops)
            loops = [loop._replace(carry=carry) for loop, carry in zip(loops, carries, strict=True)]
        return [loop.carry for loop in loops]

    def __call__(self, inputs: LossInputs) -> Tensor:
        loss = self.terms[0](inputs)
        for term in self.terms[1:]:
            loss = loss + term(inputs)
        return loss


@dataclass(frozen=True)
class Scaled(Objective):
    """A term times a factor."""

    factor: float
    term: Objective

    @property
    def maps(self) -> Sequence[str]:
        return self.term.maps

    def with_inputs(self, task: Task, steps: Steps, received: Weights) -> Steps:
        return self.term.with_inputs(task, steps, received)

    def before_steps(self, client: GradientClient, task: Task, loops: Sequence[Loop]) -> list[Carry]:
        return self.term.before_steps(client, task, loops)

    def __call__(self, inputs: LossInputs) -> Tensor:
        return self.factor * self.term(inputs)


@dataclass(frozen=True)
class TaskLoss(Objective):
    """The loss of the run's task on the batch: cross-entropy, squared error, or the user's own loss."""

    def __call__(self, inputs: LossInputs) -> Tensor:
        kind, outputs, labels = inputs.task.kind, inputs.output.logits, inputs.batch[Y]
        if inputs.clients is None:
            return kind.mean_loss(outputs, labels)
        values, counts = kind.losses(outputs, labels)
        if counts is None:
            return inputs.mean(values)
        # 0 for a batch of padding only, and for clients that have finished.
        return inputs.mean(values) / inputs.mean(counts).clamp_min(1e-9)


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Mean cross-entropy of the batch's labels, which must be classes. `TaskLoss` works with every task."""

    def __call__(self, inputs: LossInputs) -> Tensor:
        if not isinstance(inputs.task.kind, Classification):
            raise InputError(
                f"CrossEntropy is a loss of classes, and the task is {inputs.task.kind.name}; use TaskLoss"
            )
        if inputs.clients is None:
            return F.cross_entropy(inputs.output.logits, inputs.batch[Y])
        return inputs.mean(F.cross_entropy(inputs.output.logits, inputs.batch[Y], reduction="none"))


@dataclass(frozen=True)
class Proximal(Objective):
    """(μ/2)·‖w − centre‖² over the trained parameters.

    The centre is the weights that training started from, or with the prefix `centre` the tensors that
    `GradientClient.start` returned under ``centre + NAME``.
    """

    mu: float
    centre: str = ""

    def __call__(self, inputs: LossInputs) -> Tensor:
        pairs = [(value, inputs.received[self.centre + name]) for name, value in inputs.trained.items()]
        return self.mu / 2 * torch.stack([inputs.total((value - centre).pow(2)) for value, centre in pairs]).sum(0)


@dataclass(frozen=True)
class Linear(Objective):
    """⟨slope, w⟩ over the trained parameters: adds a fixed vector to their gradient.

    The slope is part of what `GradientClient.start` returns, see `with_slope`.
    """

    def __call__(self, inputs: LossInputs) -> Tensor:
        terms = [inputs.total(value * inputs.received[SLOPE + name]) for name, value in inputs.trained.items()]
        return torch.stack(terms).sum(0)


def divergences(student: Tensor, teacher: Tensor, kind: TaskKind) -> Tensor:
    """KL(softmax(t) ‖ softmax(z)) of each sample's logits z from the teacher's t, mean over positions if several.

    Of multi-label, Σ over labels of KL(σ(t) ‖ σ(z)); of a regression, the squared distance, mean over targets.
    """
    if isinstance(kind, Regression):
        return (student - teacher).square().flatten(1).mean(1)
    if isinstance(kind, MultiLabel):
        entropy = partial(F.binary_cross_entropy_with_logits, target=teacher.sigmoid(), reduction="none")
        return (entropy(student) - entropy(teacher)).sum(1)
    student, teacher = student.log_softmax(-1), teacher.log_softmax(-1)
    divergence = F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)
    return divergence.flatten(1).mean(1) if divergence.dim() > 1 else divergence


def with_slope(weights: Weights, slope: Weights) -> Weights:
    """Weights to start from, with the slope of `Linear` beside them: a tensor for every trained parameter."""
    return {**weights, **{SLOPE + name: value for name, value in slope.items()}}


def _terms(objective: Objective) -> tuple[Objective, ...]:
    return objective.terms if isinstance(objective, Total) else (objective,)
