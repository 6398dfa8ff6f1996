"""The loss on public data among the classes that these data have, so that other classes are not unlearned."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.core import Shard
from undergrowth.core.names import HELD
from undergrowth.learning import LossInputs, Objective, TaskLoss


def present_classes(shard: Shard, classes: int) -> dict[str, Tensor]:
    """The batch entry that `PresentClassesLoss` needs: for each sample, which classes the shard has."""
    present = torch.zeros(classes, dtype=torch.bool, device=shard.y.device).index_fill(0, shard.y, True)
    return {HELD: present.expand(len(shard), -1)}


@dataclass(frozen=True)
class PresentClassesLoss(Objective):
    """The loss of the task with the logits of absent classes left out, which neither rise nor fall."""

    def __call__(self, inputs: LossInputs) -> Tensor:
        logits, present = inputs.output.logits, inputs.batch[HELD]
        present = F.pad(present, (0, logits.shape[1] - present.shape[1]))  # a model may have more outputs than classes
        # Not -inf: of samples that only pad a stack, all classes are absent, and 0 times infinity is not a number.
        kept = logits.masked_fill(~present, torch.finfo(logits.dtype).min)
        return TaskLoss()(replace(inputs, output=replace(inputs.output, logits=kept)))
