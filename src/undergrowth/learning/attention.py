"""Attention maps: where in a sample the features of a level are strong (Zagoruyko and Komodakis 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.core import Task, Weights
from undergrowth.learning.features import EVALUATION_BATCH
from undergrowth.learning.objectives import Look, Objective

TARGET = "attention"  # the entries of a batch that hold the teacher's maps, by level


def attention_map(features: Tensor) -> Tensor:
    """Σ over channels of |f|²: samples × channels × height × width → samples × height × width."""
    return features.square().sum(1)


def attention(features: Tensor) -> Tensor:
    """The attention map of each sample, flattened and of length 1. Flat features are a map of one channel."""
    strong = attention_map(features) if features.dim() > 2 else features.square()
    return F.normalize(strong.flatten(1))


def attention_of(task: Task, weights: Weights, x: Tensor, levels: Sequence[str]) -> dict[str, Tensor]:
    """What `Attention` compares with, for all samples: the maps of a model that stands still, in evaluation mode."""
    with torch.no_grad():
        outputs = [task.model.run(weights, some, maps=levels).maps for some in x.split(EVALUATION_BATCH)]
    return {f"{TARGET}/{level}": torch.cat([attention(maps[level]) for maps in outputs]) for level in levels}


@dataclass(frozen=True)
class Attention(Objective):
    """Σ over levels of ‖attention − the teacher's‖₂, mean over the batch, which holds the teacher's."""

    maps: Sequence[str] = ()

    def __call__(self, look: Look) -> Tensor:
        gaps = [attention(look.output.maps[level]) - look.batch[f"{TARGET}/{level}"] for level in self.maps]
        return look.mean(torch.stack([torch.linalg.vector_norm(gap, dim=1) for gap in gaps]).sum(0))
