"""The received model on the device's samples: its loss, its logits, and how much each of its weights matters.

`Consolidation` (elastic weight consolidation, EWC) and `SoftTargets` (knowledge distillation, KD) are the terms of
local adaptation: they keep a model near the received one. A `ReferenceClient` gives them what they need of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from undergrowth.core import Carry, Context, Packet, Shard, State, Steps, Task, Weights
from undergrowth.core.names import MODEL_NAME
from undergrowth.learning.distillation import TEACHER
from undergrowth.learning.features import augmented_inputs, logits_of, predictions
from undergrowth.learning.gradient_client import GradientClient
from undergrowth.learning.objectives import LossInputs, Objective, Scaled, TaskLoss, Total, divergences
from undergrowth.learning.optimisers import Sgd

LOGITS, FISHER_INFORMATION = "logits", "Fisher information"  # what a term may need of the received model
FISHER = "fisher/"  # prefix of names in `LossInputs.received`: the Fisher information of a parameter
FISHER_BATCH = 16  # samples whose gradients are traced at once
FORMS = ("cited", "printed")


@dataclass(frozen=True)
class Consolidation(Objective):
    """(λ/2)·Σ F_i·(w_i − received_i)² over the trained parameters, with the diagonal Fisher information F."""

    strength: float
    of_received: Sequence[str] = (FISHER_INFORMATION,)

    def __call__(self, inputs: LossInputs) -> Tensor:
        received = inputs.received
        terms = [
            inputs.total(received[FISHER + name] * (value - received[name]).pow(2))
            for name, value in inputs.trained.items()
        ]
        return self.strength / 2 * torch.stack(terms).sum(0)


@dataclass(frozen=True)
class SoftTargets(Objective):
    """KL(softmax(g/T) ‖ softmax(z/T)), mean over the batch. z are the logits, g those of the received model.

    For tasks other than classification see `divergences`. Times T², the term of a regression does not depend on T.
    """

    temperature: float
    of_received: Sequence[str] = (LOGITS,)

    def __call__(self, inputs: LossInputs) -> Tensor:
        kind, student, teacher = inputs.task.kind, inputs.output.logits, inputs.batch[TEACHER]
        return inputs.mean(divergences(student / self.temperature, teacher / self.temperature, kind))


def elastic_loss(strength: float) -> Objective:
    """Task loss + (λ/2)·Σ F_i·(w_i − received_i)²: the loss of EWC, with λ = `strength`."""
    return TaskLoss() + Consolidation(strength)


def distillation_loss(alpha: float, temperature: float, form: str = FORMS[0]) -> Objective:
    """The loss of KD from the received model.

    cited: (1 − α)·task loss + α·T²·KL, the form of Hinton et al. and Yu et al. printed: α·T²·task loss +
    (1 − α)·KL, as Iacob et al. (2023, eq. 6) print it. A term whose weight is 0 is left out.
    """
    square = temperature**2
    task, teacher = (1 - alpha, alpha * square) if form == FORMS[0] else (alpha * square, 1 - alpha)
    return weighted_sum((task, TaskLoss()), (teacher, SoftTargets(temperature)))


def pull_strength(objective: Objective) -> float:
    """The λ of all `Consolidation` terms of an objective together."""
    if isinstance(objective, Total):
        return sum(pull_strength(term) for term in objective.terms)
    if isinstance(objective, Scaled):
        return objective.factor * pull_strength(objective.term)
    return objective.strength if isinstance(objective, Consolidation) else 0.0


def weighted_sum(*terms: tuple[float, Objective]) -> Objective:
    """Σ weight·term. A weight of 1 does not change the bits of its term, and a term of weight 0 is not computed."""
    kept = [term if weight == 1 else weight * term for weight, term in terms if weight]
    total = kept[0] if kept else 0.0 * terms[0][1]
    for term in kept[1:]:
        total = total + term
    return total


@dataclass(frozen=True)
class ReferenceClient(GradientClient):
    """Adds to the batches and the received weights what the terms of the objective need of the received model.

    A step of SGD on a term (λ/2)·F·(w − received)² goes beyond its minimum if lr·λ·F is above 1, and diverges above 2.
    Therefore F is at most 1/(lr·λ): a weight with a larger F returns to the received one in a single step.
    """

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        carry, steps = super().begin(task, down, shard, own, context)
        if FISHER_INFORMATION in self.objective.of_received:
            received, device_task = carry["received"], self._device_task(task, down.tags.get(MODEL_NAME, ""))
            information = fisher_information(device_task, received, shard, self.split)
            pull = carry["lr"] * pull_strength(self.objective)
            if pull > 0 and isinstance(self._optimiser(task), Sgd):
                information = {name: value.clamp_max(1 / pull) for name, value in information.items()}
            carry["received"] = {**received, **{FISHER + name: value for name, value in information.items()}}
        return carry, steps

    def batches(self, task: Task, down: Packet, steps: Steps, shard: Shard, own: State, context: Context) -> Steps:
        if LOGITS not in self.objective.of_received:
            return steps
        received = self.start(task, down, own)
        if task.augmentation is None:
            return replace(steps, data={**steps.data, TEACHER: logits_of(task, received, shard.x)})
        logits = tuple(
            torch.cat([logits_of(task, received, part) for part in augmented_inputs(task, steps, epoch)])
            for epoch in range(len(steps.epochs))
        )
        return replace(steps, visits={**steps.visits, TEACHER: logits})


def mean_loss(task: Task, weights: Weights, shard: Shard) -> Tensor:
    """The loss of the run's task for a model over all samples of a shard, in evaluation mode."""
    return task.kind.mean_loss(predictions(task, weights, shard), shard.y)


def fisher_information(task: Task, weights: Weights, shard: Shard, split: str | None = None) -> dict[str, Tensor]:
    """The diagonal empirical Fisher information: the mean over samples of (∂ log p(y | x) / ∂w)², for every parameter.

    −log p is the loss of the task; a sample of next-token is a sequence. The model runs in evaluation mode.
    split: only the parameters above this level.
    """
    trained = {name: weights[name].detach().clone().requires_grad_() for name in task.model.trainable(split)}
    total = [torch.zeros_like(value) for value in trained.values()]
    # A gradient for each sample. On meta tensors, which only count the work, as many samples at once cost the same.
    size = FISHER_BATCH if shard.x.is_meta else 1
    for x, y in zip(shard.x.split(size), shard.y.split(size), strict=True):
        loss = task.kind.mean_loss(task.model({**weights, **trained}, x), y)
        gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True, materialize_grads=True)
        torch._foreach_addcmul_(total, gradients, gradients)
    return {name: value / max(1, len(shard)) for name, value in zip(trained, total, strict=True)}
