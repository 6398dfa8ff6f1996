"""Contrastive: a loss term that pulls features towards those of one model and away from those of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch.nn.functional as F
from torch import Tensor

from undergrowth.core import Carry, Context, Packet, Shard, State, Steps, Task, Weights
from undergrowth.learning.features import features_of
from undergrowth.learning.gradient_client import GradientClient
from undergrowth.learning.objectives import Look, Objective

NEAR, FAR = "near", "far"  # the entries of a batch that hold the features of the two models


@dataclass(frozen=True)
class Contrastive(Objective):
    """−log(exp(s(z, near)/τ) / (exp(s(z, near)/τ) + exp(s(z, far)/τ))), mean over the batch.

    z are the features that enter the last layer, s is the cosine similarity, τ the temperature. The batches must have
    been through `with_references`.
    """

    temperature: float = 0.5
    maps: Sequence[str] = ("head",)

    def __call__(self, look: Look) -> Tensor:
        z = look.output.maps["head"].flatten(1)
        near, far = (F.cosine_similarity(z, look.batch[name]) for name in (NEAR, FAR))
        # The same as the formula, and nothing in it overflows at a low temperature.
        return look.mean(F.softplus((far - near) / self.temperature))


def with_references(task: Task, steps: Steps, shard: Shard, near: Weights, far: Weights | None) -> Steps:
    """The same steps, whose batches also hold the features of both models. `far` None: those of `near` again.

    Both models stand still while the device trains and run in evaluation mode, so one pass over the samples
    serves all epochs; a pass in training mode would also average over the batch, which the next epoch shuffles.
    """
    to = features_of(task, near, shard.x, "head").flatten(1)
    away = to if far is None else features_of(task, far, shard.x, "head").flatten(1)
    return replace(steps, data={**steps.data, NEAR: to, FAR: away})


@dataclass(frozen=True)
class Remembering(GradientClient):
    """Keeps the model that it sent, to tell the next one from it."""

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        carry, steps = super().begin(task, down, shard, own, context)
        return carry, with_references(task, steps, shard, down.tensors, own.get("model"))

    def send(self, task: Task, down: Packet, trained: Packet, own: State) -> tuple[Packet, State]:
        return trained, {"model": dict(trained.tensors)}
