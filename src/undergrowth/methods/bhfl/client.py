"""LeafClient: a device that keeps a model, merges what it receives into it, and trains it as another method does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from undergrowth.core import Batch, Carry, Context, LoopClient, Packet, Sampler, Shard, State, Steps, Task
from undergrowth.core.client import Loop
from undergrowth.core.names import BUFFERS, FINISH, MODEL, PARAMETERS
from undergrowth.learning.servers import uploaded_weights
from undergrowth.methods.bhfl.node_optimiser import ReceivedModel
from undergrowth.methods.bhfl.residuals import unpack_residuals

if TYPE_CHECKING:
    from undergrowth.methods.bhfl import BHFL

START, MEMORY = "leaf start", "leaf memory"


class _LossSampler(Sampler):
    """Makes a `GradientClient` add its mean training loss to its upload."""

    needs_loss = True


@dataclass(frozen=True)
class LeafClient(LoopClient):
    """Own state: the model, the memory of the optimiser that merges, and the state of the leaf's method."""

    options: BHFL
    work: LoopClient

    @property
    def ignored_settings(self) -> frozenset[str]:
        return self.work.ignored_settings

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        received, memory = uploaded_weights(down), own.get("down", {})
        start = dict(received)
        if MODEL in own:
            residuals = list(unpack_residuals(down).values())
            optimiser = self.options.leaf_optimiser
            start, memory = optimiser.merge(task, own[MODEL], ReceivedModel(received), residuals, memory, shard)
        if self.options.selector.needs_loss:
            task = replace(task, sampler=_LossSampler())
        packet = Packet(start, down.scalars, down.tags)
        carry, steps = self.work.begin(task, packet, shard, own.get("leaf", {}), context)
        return {**carry, FINISH: {**carry.get(FINISH, {}), START: packet, MEMORY: memory}}, steps

    def before_steps(self, task: Task, loops: Sequence[Loop]) -> list[Carry]:
        return self.work.before_steps(task, loops)

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        return self.work.step(task, carry, batch)

    def after_steps(self, task: Task, loops: Sequence[Loop]) -> list[Carry]:
        return self.work.after_steps(task, loops)

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        packet: Packet = carry[FINISH][START]
        up, kept = self.work.finish(task, packet, carry, shard, own.get("leaf", {}), context)
        trained = {**packet.tensors, **carry[PARAMETERS], **carry[BUFFERS]}
        return up, {MODEL: trained, "down": carry[FINISH][MEMORY], "leaf": kept}
