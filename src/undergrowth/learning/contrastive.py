"""Contrastive learning on devices: a loss term that compares the features of three models, and its client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.core import Context, Packet, Shard, State, Steps, Task, Weights
from undergrowth.core.names import MODEL
from undergrowth.learning.features import augmented_inputs, features_of
from undergrowth.learning.gradient_client import GradientClient, Trained
from undergrowth.learning.objectives import LossInputs, Objective

NEAR, FAR = "near", "far"  # entries of a batch: features of the received model, and of the device's previous one


@dataclass(frozen=True)
class Contrastive(Objective):
    """−log(exp(s(z, near)/τ) / (exp(s(z, near)/τ) + exp(s(z, far)/τ))), mean over the batch.

    z are the features that enter the last layer, s is the cosine similarity, τ the temperature. Needs the batches of
    a `ContrastiveClient`.
    """

    temperature: float = 0.5
    maps: Sequence[str] = ("head",)

    def __call__(self, inputs: LossInputs) -> Tensor:
        z = inputs.output.maps["head"].flatten(1)
        near, far = (F.cosine_similarity(z, inputs.batch[name]) for name in (NEAR, FAR))
        # Equal to the formula, without overflow at a low temperature.
        return inputs.mean(F.softplus((far - near) / self.temperature))


@dataclass(frozen=True)
class ContrastiveClient(GradientClient):
    """Adds the features of the received and of the previous model to the batches, and keeps the model that it sends."""

    def batches(self, task: Task, down: Packet, steps: Steps, shard: Shard, own: State, context: Context) -> Steps:
        # Both models are fixed and run in evaluation mode, so that one pass over the samples serves all epochs. With
        # augmentation, every epoch has other inputs and needs a pass.
        if task.augmentation is not None:
            near_visits = _visited_features(task, down.tensors, steps)
            far_visits = _visited_features(task, own[MODEL], steps) if MODEL in own else near_visits
            return replace(steps, visits={**steps.visits, NEAR: near_visits, FAR: far_visits})
        near = features_of(task, down.tensors, shard.x, "head").flatten(1)
        far = features_of(task, own[MODEL], shard.x, "head").flatten(1) if MODEL in own else near
        return replace(steps, data={**steps.data, NEAR: near, FAR: far})

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        return trained.packet, {MODEL: dict(trained.tensors)}


def _visited_features(task: Task, weights: Weights, steps: Steps) -> tuple[Tensor, ...]:
    """For each epoch the features of its augmented inputs, in the order of the visits."""
    return tuple(
        torch.cat(
            [features_of(task, weights, part, "head").flatten(1) for part in augmented_inputs(task, steps, epoch)]
        )
        for epoch in range(len(steps.epochs))
    )
