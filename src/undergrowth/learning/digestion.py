"""Digestion: a device keeps its model, learns what all say of public samples, and says what it makes of others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.core import All, Carry, Context, Packet, Shard, State, Steps, Task, Weights
from undergrowth.learning.distillation import TEACHER, apart, draw_of
from undergrowth.learning.gradient_client import able, ordered
from undergrowth.learning.ladder import MODEL, LadderClient, on_rung
from undergrowth.learning.objectives import Look, Objective

CONSENSUS, DIGESTED, DRAW, SEED = "consensus", "digested", "draw", "seed"  # entries of a packet


@dataclass(frozen=True)
class Digestion(Objective):
    """The distance from the consensus for public samples, and the cross-entropy for the device's own."""

    loss: str = "l1"

    def __call__(self, look: Look) -> Tensor:
        logits, batch = look.output.logits, look.batch
        own = F.cross_entropy(logits, batch["y"].clamp_min(0), reduction="none")
        if TEACHER not in batch:
            return look.mean(own)
        return look.mean(torch.where(batch["public"], apart(self.loss, logits, batch[TEACHER]), own))


@dataclass(frozen=True)
class Digesting(LadderClient):
    """Learns the consensus, then its own samples, and sends its logits on the public samples of this round.

    The packet has the consensus, if there is one, and numbers: from which the samples that it is about and those of
    this round are drawn, and from which a device that has no model yet makes one.
    """

    samples: int = 5000
    digest_epochs: int = 1

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        if own.get(MODEL) == down.tags[MODEL]:
            kept: Weights = own["weights"]
            return kept
        return task.model.initial(int(down.scalars[SEED]))

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        carry, steps = super().begin(task, down, shard, own, context)
        teacher = down.tensors.get(CONSENSUS)
        if teacher is None:
            return carry, steps
        public, drawn = self._drawn(task, down.scalars[DIGESTED])
        count = len(drawn)
        # One after the other in one long row of samples: all batches of an epoch are of one kind.
        data = {"x": _followed(public.x, drawn, shard.x), "y": _followed(public.y, drawn, shard.y)}
        data[TEACHER] = torch.cat([teacher, teacher.new_zeros(len(shard), teacher.shape[1])])
        data["public"] = torch.arange(count + len(shard), device=shard.x.device) < count
        seen, generator = on_rung(task, carry[MODEL]), context.generator("digest")
        lent = Shard(data["x"][:count], data["y"][:count])
        first = ordered(seen, {}, lent, All(), self.digest_epochs, steps.batch, generator)
        epochs = (*able(first, seen.model.smallest_batch()).epochs, *(order + count for order in steps.epochs))
        return carry, Steps(data, epochs, steps.batch)

    def conclude(
        self, task: Task, down: Packet, trained: Packet, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        public, drawn = self._drawn(task, down.scalars[DRAW])
        with torch.no_grad():
            # In the batches of training: a device that can train then has the memory for this too.
            pieces = [task.model(trained.tensors, public.x[rows]) for rows in drawn.split(task.train.batch)]
        logits = torch.cat(pieces)
        return Packet({"logits": logits}, trained.scalars), {MODEL: down.tags[MODEL], "weights": dict(trained.tensors)}

    def _drawn(self, task: Task, seed: float) -> tuple[Shard, Tensor]:
        assert task.public is not None
        return task.public, draw_of(task.public, self.samples, seed).to(task.public.x.device)


def _followed(public: Tensor, drawn: Tensor, own: Tensor) -> Tensor:
    """Those public samples, and the device's own after them, without a copy in between."""
    both = own.new_empty(len(drawn) + len(own), *own.shape[1:])
    torch.index_select(public, 0, drawn, out=both[: len(drawn)])
    both[len(drawn) :].copy_(own)
    return both
