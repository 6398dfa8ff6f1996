"""The device's part of FedMD: learns the consensus, trains, and sends logits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from undergrowth.core import AllSelector, Batch, Carry, Context, Packet, Shard, State, Steps, Task, Weights
from undergrowth.core.names import AUGMENT, BUFFERS, MODEL_NAME, PARAMETERS, SEED, TEACHER, WEIGHT, X, Y
from undergrowth.learning import GradientClient, LossInputs, Objective, TaskLoss, Trained
from undergrowth.learning.distillation import draw_public, logit_distances, public_data
from undergrowth.learning.gradient_client import shuffled_steps, without_small_batches

if TYPE_CHECKING:
    from undergrowth.methods.fedmd import FedMD

CONSENSUS = "consensus"  # tensor of a packet
DIGESTED, DRAW = "digested", "draw"  # scalars: seeds of the public samples of the consensus, and of this round
PUBLIC = "public"  # entry of a batch: whether a sample is public
RUNNING, BATCH = "running", "batch"  # statistics of BatchNorm in the logits that are sent
KEPT = "kept"  # entry of a carry and of a device's state: its model after learning the consensus


@dataclass(frozen=True)
class Digestion(Objective):
    """The distance from the consensus for public samples, and the task's loss for the device's own."""

    loss: str = "l1"

    def __call__(self, inputs: LossInputs) -> Tensor:
        logits, batch = inputs.output.logits, inputs.batch
        kind, labels = inputs.task.kind, batch[Y]
        if TEACHER not in batch:
            return TaskLoss()(inputs)
        public = batch[PUBLIC]
        # The labels of public samples may be hidden, and a NaN would reach the gradient.
        values, counts = kind.losses(logits, labels.where(~public.view(-1, *[1] * (labels.dim() - 1)), 0))
        distances = logit_distances(self.loss, logits, batch[TEACHER], kind)
        both = inputs.mean(torch.where(public, distances, values))
        return both if counts is None else both / inputs.mean(counts.masked_fill(public, 1)).clamp_min(1e-9)


@dataclass(frozen=True, kw_only=True)
class FedMDClient(GradientClient):
    """Learns the consensus, trains on its own samples, and sends its logits on this round's public samples."""

    options: FedMD

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        if own.get("model") == down.tags[MODEL_NAME]:
            kept: Weights = own["weights"]
            return kept
        return task.model.initial(int(down.scalars[SEED]))

    def batches(self, task: Task, down: Packet, steps: Steps, shard: Shard, own: State, context: Context) -> Steps:
        teacher = down.tensors.get(CONSENSUS)
        if teacher is None:
            return steps
        public, drawn = self._draw(task, down.scalars[DIGESTED])
        count = len(drawn)
        # Public and own samples in one data set; each epoch, and so each batch, has samples of one kind only.
        data = {X: _concatenate(public.x, drawn, shard.x), Y: _concatenate(public.y, drawn, shard.y)}
        data[TEACHER] = torch.cat([teacher, teacher.new_zeros(len(shard), *teacher.shape[1:])])
        data[PUBLIC] = torch.arange(count + len(shard), device=shard.x.device) < count
        shown, generator = Shard(data[X][:count], data[Y][:count]), context.generator("digest")
        size, epochs = self.options.digest_batch or steps.batch, self.options.digest_epochs
        digesting = shuffled_steps(task, {}, shown, AllSelector(), epochs, size, generator)
        digesting = without_small_batches(digesting, task.model.smallest_batch(), task.train.drop_last)
        first, then = (_with_batch(each, max(size, steps.batch)) for each in (digesting, steps))
        visits = dict(then.visits)
        if task.augmentation is not None:  # the consensus is about the public samples as they are
            visits[AUGMENT] = (*(task.augmentation.keep(len(order)) for order in first.epochs), *visits[AUGMENT])
        both = Steps(data, (*first.epochs, *(order + count for order in then.epochs)), then.batch, visits)
        return both.keyed(task.model, context)

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        carry, steps = super().begin(task, down, shard, own, context)
        if self.options.evaluated == "digested" and CONSENSUS in down.tensors:
            carry[KEPT] = {**carry[PARAMETERS], **carry[BUFFERS]}
        return carry, steps

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        after = super().step(task, carry, batch)
        if KEPT not in carry:
            return after
        public = batch[PUBLIC]
        if WEIGHT in batch:  # of several clients; the samples of one that has finished have no weight
            clients = len(next(iter(carry[PARAMETERS].values())))
            digesting = (public & (batch[WEIGHT] > 0)).view(clients, -1).any(1)
        else:
            digesting = public.any()

        def choose(now: Tensor, before: Tensor) -> Tensor:  # without a branch: a GPU records one step for both kinds
            return torch.where(digesting.view((*digesting.shape, *[1] * (now.dim() - digesting.dim()))), now, before)

        weights = {**after[PARAMETERS], **after[BUFFERS]}
        return {**after, KEPT: {name: choose(value, carry[KEPT][name]) for name, value in weights.items()}}

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        packet, after = super().finish(task, down, carry, shard, own, context)
        return packet, {**after, KEPT: dict(carry[KEPT])} if KEPT in carry else after

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        task, weights = trained.task, dict(trained.tensors)
        public, drawn = self._draw(task, trained.down.scalars[DRAW])
        size = task.train.batch  # a device that can train has enough memory for batches of about this size
        with torch.no_grad():
            if self.options.statistics == BATCH:
                model, parts = task.model.with_precision(False), drawn.tensor_split(max(1, len(drawn) // size))
                logits = torch.cat([model.run(weights, public.x[rows], training=True).logits for rows in parts])
            else:
                logits = torch.cat([task.model(weights, public.x[rows]) for rows in drawn.split(size)])
        own = {"model": trained.down.tags[MODEL_NAME], "weights": weights}
        return Packet({"logits": logits}, trained.scalars), own

    def _draw(self, task: Task, seed: float) -> tuple[Shard, Tensor]:
        public = public_data(task, "fedmd")
        return public, draw_public(public, self.options.samples, seed).to(public.x.device)


def _with_batch(steps: Steps, batch: int) -> Steps:
    """The same batches where the batch size is `batch`: if they are smaller, every batch becomes an epoch."""
    if steps.batch == batch:
        return steps

    def split(values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(part for each in values for part in each.split(steps.batch))

    visits = {name: split(values) for name, values in steps.visits.items()}
    return replace(steps, epochs=split(steps.epochs), batch=batch, visits=visits)


def _concatenate(public: Tensor, drawn: Tensor, own: Tensor) -> Tensor:
    """The drawn public samples followed by the device's own, without a temporary copy of the former."""
    both = own.new_empty(len(drawn) + len(own), *own.shape[1:])
    torch.index_select(public, 0, drawn, out=both[: len(drawn)])
    both[len(drawn) :].copy_(own)
    return both
