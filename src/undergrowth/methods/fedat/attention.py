"""Attention maps (Zagoruyko and Komodakis 2017), and an objective that compares them with those of a teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.core import Task, Weights
from undergrowth.learning.features import EVALUATION_BATCH
from undergrowth.learning.objectives import LossInputs, Objective

FORMS = ("mean-square", "printed")
TARGET = "attention"  # prefix of batch entries: the teacher's attention, by level


def attention_map(features: Tensor) -> Tensor:
    """Σ over channels of f²: samples × channels × height × width → samples × height × width."""
    return features.square().sum(1)


def attention(features: Tensor) -> Tensor:
    """The attention map of each sample, flattened and of length 1. Flat features count as a map of one channel."""
    strength = attention_map(features) if features.dim() > 2 else features.square()
    return F.normalize(strength.flatten(1))


def attention_of(task: Task, weights: Weights, x: Tensor, levels: Sequence[str]) -> dict[str, Tensor]:
    """The batch entries that `AttentionTransfer` compares with: the attention of a fixed model in evaluation mode."""
    with torch.no_grad():
        outputs = [task.model.run(weights, batch, maps=levels).maps for batch in x.split(EVALUATION_BATCH)]
    return {f"{TARGET}/{level}": torch.cat([attention(maps[level]) for maps in outputs]) for level in levels}


@dataclass(frozen=True)
class AttentionTransfer(Objective):
    """Σ over levels of the distance of the attention from the teacher's, mean over the batch.

    form: the distance of a sample at one level. `mean-square`: the mean of the squared differences over the elements of
    the map; `printed`: the ℓ2 norm of the differences. The batch needs the entries of `attention_of`.
    """

    maps: Sequence[str] = ()
    form: str = FORMS[0]

    def __call__(self, inputs: LossInputs) -> Tensor:
        gaps = [attention(inputs.output.maps[level]) - inputs.batch[f"{TARGET}/{level}"] for level in self.maps]
        if self.form == "printed":
            return inputs.mean(torch.stack([torch.linalg.vector_norm(gap, dim=1) for gap in gaps]).sum(0))
        return inputs.mean(torch.stack([gap.square().mean(1) for gap in gaps]).sum(0))
