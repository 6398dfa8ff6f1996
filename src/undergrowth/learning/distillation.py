"""Distillation: models that learn what others make of the same samples, and training at the server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.core import All, Context, Packet, Shard, Task, Weights
from undergrowth.learning.gradient_client import GradientClient
from undergrowth.learning.objectives import Look, Objective
from undergrowth.learning.optimisers import Sgd

TEACHER = "teacher"  # the entry of a batch that holds the logits to learn
LOSSES = ("l1", "ce", "l2")


@dataclass(frozen=True)
class Distillation(Objective):
    """How far the logits are from the teacher's, mean over the batch.

    l1: mean over the classes of |z − t|; l2: of (z − t)²; ce: −Σ softmax(t)·log softmax(z).
    """

    loss: str = "l1"

    def __call__(self, look: Look) -> Tensor:
        return look.mean(apart(self.loss, look.output.logits, look.batch[TEACHER]))


def apart(loss: str, logits: Tensor, teacher: Tensor) -> Tensor:
    """The distance of each sample's logits from the teacher's."""
    if loss == "ce":
        return -(teacher.softmax(1) * F.log_softmax(logits, 1)).sum(1)
    difference = logits - teacher
    return (difference.abs() if loss == "l1" else difference.square()).mean(1)


def consensus(logits: Iterable[Tensor]) -> Tensor:
    """The mean of what several models say of the same samples, each of which counts alike."""
    return torch.stack(list(logits)).mean(0)


def draw_of(public: Shard, samples: int, seed: float) -> Tensor:
    """Positions of so many of the server's samples, or of all; whoever has the seed draws the same."""
    return torch.randperm(len(public), generator=torch.Generator().manual_seed(int(seed)))[:samples]


def draw_seed(context: Context) -> float:
    """A fresh seed for `draw_of` that a packet can carry."""
    return float(context.key("public") >> 15)  # 48 bits: exact as a float


def taught(
    task: Task,
    weights: Weights,
    data: Mapping[str, Tensor],
    objective: Objective,
    context: Context,
    *,
    lr: float,
    epochs: int,
    batch: int,
    split: str | None = None,
) -> dict[str, Tensor]:
    """The weights after plain SGD at the server. data: x, y, and what else the objective looks at, side by side."""
    student = GradientClient(objective, split, All(), Sgd(), lr, epochs, batch)
    down, shard = Packet(weights), Shard(data["x"], data["y"])
    carry, steps = student.begin(task, down, shard, {}, context)
    context.seed_torch(shard.x.device)
    for some in replace(steps, data=data):
        carry = student.step(task, carry, some)
    trained, _ = student.finish(task, down, carry, shard, {}, context)
    return {**weights, **trained.tensors}
