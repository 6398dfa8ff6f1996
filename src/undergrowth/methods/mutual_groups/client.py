"""The client of mutual groups: trains the global model and that of its group on the same batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from undergrowth.core import Batch, Carry, Context, Packet, Shard, State, Steps, Task, Weights
from undergrowth.core.names import BUFFERS, FINISH, KEYS, LOSS, PARAMETERS, RECEIVED, SAMPLES, WEIGHT, X
from undergrowth.learning import GradientClient, LossInputs
from undergrowth.learning.gradient_client import augmented, without_small_batches
from undergrowth.learning.objectives import divergences

if TYPE_CHECKING:
    from undergrowth.methods.mutual_groups import MutualGroups

GLOBAL, GROUP = "global", "group"  # parts of a packet; GROUP is also the tag that names the group


def group_task(task: Task) -> Task:
    """The task with the architecture of the groups' models."""
    return task.of_device(next(iter(task.ladder), ""))


@dataclass(frozen=True, kw_only=True)
class MutualClient(GradientClient):
    """Trains both models of the packet, each also towards the predictions of the other."""

    options: MutualGroups

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        return down.part(GLOBAL).tensors

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        carry, steps = super().begin(task, down, shard, own, context)
        model, received = group_task(task).model, down.part(GROUP).tensors
        parameters = {name: received[name] for name in model.trainable(None)}
        carry[GROUP] = {
            PARAMETERS: parameters,
            BUFFERS: {name: received[name] for name in model.buffers},
            "optimiser": self._optimiser(task).init(list(parameters.values())),
            RECEIVED: received,
        }
        steps = without_small_batches(steps.keyed(model, context), model.smallest_batch(None), drop_last=False)
        if steps.epochs and not len(steps):
            carry[FINISH] = {**carry[FINISH], SAMPLES: 0.0}
        return carry, steps

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        batch = augmented(task, batch)
        group = carry[GROUP]
        first, second = _Forward(task, carry, batch), _Forward(group_task(task), group, batch)
        loss = first.loss(self, self.options.global_weight, second)
        both = loss + second.loss(self, self.options.group_weight, first)
        values = [*first.trained.values(), *second.trained.values()]
        gradients = torch.autograd.grad(both.sum(), values, allow_unused=True, materialize_grads=True)
        optimiser, stepped = self._optimiser(task), "stepped" in carry
        done = []
        for forward, kept, slopes in (
            (first, carry, gradients[: len(first.trained)]),
            (second, group, gradients[len(first.trained) :]),
        ):
            updated, state = optimiser.update(
                list(kept[PARAMETERS].values()), list(slopes), kept["optimiser"], carry["lr"], stepped
            )
            parameters = dict(zip(forward.trained, updated, strict=True))
            done.append({**kept, PARAMETERS: parameters, BUFFERS: dict(forward.output.buffers), "optimiser": state})
        carry = {**done[0], GROUP: done[1], "stepped": True}
        if LOSS in carry:
            carry[LOSS], carry["steps"] = carry[LOSS] + loss.detach(), carry["steps"] + 1
        return carry

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        up, own = super().finish(task, down, carry, shard, own, context)
        group = carry[GROUP]
        buffers = {name: group[BUFFERS][name] for name in group_task(task).model.upper_buffers(None)}
        joined = Packet.join({GLOBAL: Packet(up.tensors), GROUP: Packet({**group[PARAMETERS], **buffers})})
        return replace(joined, scalars=up.scalars, tags={GROUP: down.tags[GROUP]}), own


class _Forward:
    """The forward pass of one of the two models on a batch."""

    def __init__(self, task: Task, kept: Mapping[str, Mapping[str, Tensor]], batch: Batch) -> None:
        self.trained = {name: value.detach().requires_grad_() for name, value in kept[PARAMETERS].items()}
        weights = {**kept[RECEIVED], **kept[BUFFERS], **self.trained}
        self.output = task.model.run(weights, batch[X], training=True, keys=batch.get(KEYS))
        clients = len(next(iter(self.trained.values()))) if WEIGHT in batch else None
        self.inputs = LossInputs(task, batch, self.output, self.trained, kept[RECEIVED], clients)

    def loss(self, client: MutualClient, weight: float, other: _Forward) -> Tensor:
        """The objective of the client, and the distance from the other's predictions times `weight`."""
        loss = client.objective(self.inputs)
        if not weight:
            return loss
        teacher = other.output.logits.detach()
        return loss + weight * self.inputs.mean(divergences(self.output.logits, teacher, self.inputs.task.kind))
