"""The received model on the device's samples: its loss, its logits, and how much each of its weights matters.

`Consolidation` (elastic weight consolidation, EWC) and `SoftTargets` (knowledge distillation, KD) are the terms of
local adaptation: they keep a model near the received one. They say what they need of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from undergrowth.core import Batch, Carry, Context, LoopClient, Model, Packet, Regression, Shard, Steps, Task, Weights
from undergrowth.core.client import Loop, run_loops
from undergrowth.core.names import MODEL_NAME, PARAMETERS, RECEIVED, TEACHER, WEIGHT, X, Y
from undergrowth.learning.features import augmented_inputs, logits_of
from undergrowth.learning.objectives import LossInputs, Objective, Scaled, TaskLoss, Total, divergences
from undergrowth.learning.optimisers import Sgd, build_optimiser

if TYPE_CHECKING:
    from undergrowth.learning.gradient_client import GradientClient

FISHER = "fisher/"  # prefix of names in `LossInputs.received`: the Fisher information of a parameter
FISHER_SAMPLES = 16  # of one part of a job, whose squared gradients are added up one by one
MAX_FISHER_BYTES = 8 << 20  # of the sums of all parts of a job; with larger models, parts have more samples
MAX_BATCH = 128  # samples of a client in one forward pass without training
TOTAL, STATISTICS = "total", "statistics"  # in carries: sums so far
CONTEXT = Context(0, "measurement", 0)  # nothing random happens in evaluation mode
CITED, PRINTED, AVERAGED = FORMS = ("cited", "printed", "averaged")  # of the loss of KD


@dataclass(frozen=True)
class Consolidation(Objective):
    """(λ/2)·Σ F_i·(w_i − received_i)² over the trained parameters, with the diagonal Fisher information F.

    A step of SGD on this term goes beyond its minimum if lr·λ·F is above 1, and diverges above 2. Therefore F is at
    most 1/(lr·λ): a weight with a larger F returns to the received one in a single step.
    """

    strength: float

    def before_steps(self, client: GradientClient, task: Task, loops: Sequence[Loop]) -> list[Carry]:
        known = [any(name.startswith(FISHER) for name in loop.carry[RECEIVED]) for loop in loops]  # `start` returned it
        unknown = [loop for loop, is_known in zip(loops, known, strict=True) if not is_known]
        found = iter(fisher_information(task, unknown, client.split, client.view))
        strength = pull_strength(client.objective)
        bounded = isinstance(client.optimiser or build_optimiser(task.train), Sgd)
        carries = []
        for loop, is_known in zip(loops, known, strict=True):
            carry, pull = loop.carry, loop.carry["lr"] * strength
            if not is_known:
                largest = 1 / pull if bounded and pull > 0 else math.inf
                information = {FISHER + name: value.clamp_max(largest) for name, value in next(found).items()}
                carry = {**carry, RECEIVED: {**carry[RECEIVED], **information}}
            carries.append(carry)
        return carries

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
    averaged: divide it by the number of classes or labels; that of a regression is a mean already.
    """

    temperature: float
    averaged: bool = False

    def with_inputs(self, task: Task, steps: Steps, received: Weights) -> Steps:
        if TEACHER in steps.data or TEACHER in steps.visits:
            return steps
        if task.augmentation is None:
            return replace(steps, data={**steps.data, TEACHER: logits_of(task, received, steps.data[X])})
        logits = tuple(
            torch.cat([logits_of(task, received, part) for part in augmented_inputs(task, steps, epoch)])
            for epoch in range(len(steps.epochs))
        )
        return replace(steps, visits={**steps.visits, TEACHER: logits})

    def __call__(self, inputs: LossInputs) -> Tensor:
        kind, student, teacher = inputs.task.kind, inputs.output.logits, inputs.batch[TEACHER]
        found = inputs.mean(divergences(student / self.temperature, teacher / self.temperature, kind))
        return found / student.shape[-1] if self.averaged and not isinstance(kind, Regression) else found


def elastic_loss(strength: float) -> Objective:
    """Task loss + (λ/2)·Σ F_i·(w_i − received_i)²: the loss of EWC, with λ = `strength`."""
    return TaskLoss() + Consolidation(strength)


def distillation_loss(alpha: float, temperature: float, form: str = CITED) -> Objective:
    """The loss of KD from the received model.

    cited: (1 − α)·task loss + α·T²·KL, the form of Hinton et al. and Yu et al. averaged: the same with KL divided by
    the number of classes, as the program of Yu et al. computes it. printed: α·T²·task loss + (1 − α)·KL, as Iacob et
    al. (2023, eq. 6) print it. A term whose weight is 0 is left out.
    """
    square = temperature**2
    task, teacher = (alpha * square, 1 - alpha) if form == PRINTED else (1 - alpha, alpha * square)
    return weighted_sum((task, TaskLoss()), (teacher, SoftTargets(temperature, form == AVERAGED)))


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
class FisherClient(LoopClient):
    """Adds up the squared gradients of single samples: every batch has one sample."""

    view: Callable[[Model], Model] | None = None

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        task = task.of_device(carry[MODEL_NAME], self.view)
        trained = {name: value.detach().requires_grad_() for name, value in carry[PARAMETERS].items()}
        output = task.model.run({**carry[RECEIVED], **trained}, batch[X])
        clients = len(next(iter(trained.values()))) if WEIGHT in batch else None
        loss = TaskLoss()(LossInputs(task, batch, output, trained, carry[RECEIVED], clients))
        gradients = torch.autograd.grad(loss.sum(), list(trained.values()), allow_unused=True, materialize_grads=True)
        totals = zip(carry[TOTAL].items(), gradients, strict=True)
        return {**carry, TOTAL: {name: total + gradient.square() for (name, total), gradient in totals}}


@dataclass(frozen=True)
class MeasuringClient(LoopClient):
    """Adds up the losses of samples, what each counts in the mean loss and, if `statistics`, those of the task."""

    statistics: bool

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        with torch.no_grad():
            outputs = task.model(carry[RECEIVED], batch[X])
            values, counts = task.kind.losses(outputs, batch[Y])
            rows = torch.stack([values, torch.ones_like(values) if counts is None else counts.to(values)], 1).double()
            found = {TOTAL: carry[TOTAL] + _sum_rows(rows, carry, batch)}
            if self.statistics:
                sums = _sum_rows(task.kind.statistics(outputs, batch[Y]), carry, batch)
                found[STATISTICS] = carry[STATISTICS] + sums if STATISTICS in carry else sums
        return {**carry, **found}


def _sum_rows(rows: Tensor, carry: Carry, batch: Batch) -> Tensor:
    """The sum over the samples of a batch or, in a stack, of each client's batch."""
    if WEIGHT in batch:  # samples of weight 0 only pad the stack
        rows = (rows * (batch[WEIGHT] > 0).unsqueeze(1)).reshape(len(carry[TOTAL]), -1, rows.shape[1])
    return rows.sum(-2)


def measure_models(task: Task, models: Sequence[Weights], shards: Sequence[Shard], statistics: bool) -> list[Carry]:
    """Sums over the samples of each model's shard: `total` has the losses and what they count.

    `statistics` are those of the task, if wanted and if there are samples. The models run in evaluation mode, and may
    be computed together.
    """
    # A stack is padded to full batches. Few different sizes make few kinds of stacks.
    largest = max((len(shard) for shard in shards), default=1)
    batch = min(MAX_BATCH, 1 << max(0, largest - 1).bit_length())
    loops = []
    for weights, shard in zip(models, shards, strict=True):
        carry: Carry = {RECEIVED: weights, TOTAL: torch.zeros(2, dtype=torch.float64, device=shard.x.device)}
        steps = Steps({X: shard.x, Y: shard.y}, (torch.arange(len(shard)),), batch)
        loops.append(Loop(MeasuringClient(statistics), Packet(), shard, carry, steps, CONTEXT))
    return run_loops(task, loops)


def mean_losses(task: Task, models: Sequence[Weights], shards: Sequence[Shard]) -> list[float]:
    """The loss of each model over all samples of its shard, in evaluation mode. Models may be computed together."""
    if not models:
        return []
    found = measure_models(task, models, shards, statistics=False)
    losses, counts = torch.stack([carry[TOTAL] for carry in found], 1)
    means = losses / counts.clamp_min(1)
    return [float(mean) for mean in (means if means.is_meta else means.cpu())]  # one transfer from a GPU


def mean_loss(task: Task, weights: Weights, shard: Shard) -> Tensor:
    """The loss of the run's task for a model over all samples of a shard, in evaluation mode."""
    return task.kind.mean_loss(logits_of(task, weights, shard.x), shard.y)


def fisher_information(
    task: Task, loops: Sequence[Loop], split: str | None = None, view: Callable[[Model], Model] | None = None
) -> list[dict[str, Tensor]]:
    """The diagonal empirical Fisher information of the received model of each job, for every parameter above `split`.

    It is the mean over the job's samples of (∂ log p(y | x) / ∂w)². −log p is the loss of the task; a sample of
    next-token is a sequence. The model runs in evaluation mode. `view`: see `Task.of_device`.
    """
    measured: list[list[Loop]] = []
    for loop in loops:
        name, received, data = loop.carry.get(MODEL_NAME, ""), loop.carry[RECEIVED], loop.steps.data
        parameters = {each: received[each] for each in task.of_device(name, view).model.trainable(split)}
        total = {each: torch.zeros_like(value) for each, value in parameters.items()}
        carry: Carry = {PARAMETERS: parameters, RECEIVED: received, TOTAL: total, MODEL_NAME: name}
        parts = [
            loop._replace(client=FisherClient(view), carry=carry, steps=steps) for steps in _single_samples(data, total)
        ]
        measured.append(parts)
    totals = (carry[TOTAL] for carry in run_loops(task, [part for parts in measured for part in parts]))
    return [
        _mean(list(islice(totals, len(parts))), len(loop.steps.data[Y]))
        for loop, parts in zip(loops, measured, strict=True)
    ]


def _single_samples(data: Mapping[str, Tensor], total: Weights) -> list[Steps]:
    """Batches of one sample in several parts: engines compute loops at once, but the steps of a loop one by one."""
    samples = len(data[Y])
    if data[X].is_meta:  # tensors that only count the work, which is the same in one part and in large batches
        return [Steps({X: data[X], Y: data[Y]}, (torch.arange(samples),), FISHER_SAMPLES)]
    most = max(1, MAX_FISHER_BYTES // max(1, sum(value.nbytes for value in total.values())))
    size = max(FISHER_SAMPLES, -(-samples // most))
    pairs = zip(data[X].split(size), data[Y].split(size), strict=True)
    return [Steps({X: x, Y: y}, (torch.arange(len(y)),), 1) for x, y in pairs]


def _mean(totals: Sequence[Weights], samples: int) -> dict[str, Tensor]:
    sums = totals[0] if len(totals) == 1 else {n: torch.stack([part[n] for part in totals]).sum(0) for n in totals[0]}
    return {name: value / max(1, samples) for name, value in sums.items()}
