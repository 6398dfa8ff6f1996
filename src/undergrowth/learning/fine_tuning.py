"""FineTuning: a device that keeps the lower part of the model and trains the upper one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from undergrowth.core import Batch, Carry, Context, LoopClient, Packet, Shard, State, Steps, Task
from undergrowth.learning.features import UpperPart, features_of
from undergrowth.learning.gradient_client import GradientClient

WARM = "warm"  # the tag "phase" of a packet that asks for training of the whole model; a scalar of what comes back


@dataclass(frozen=True)
class FineTuning(LoopClient):
    """Trains the whole model where the packet says so, and else the upper part, sending that alone.

    The lower part comes once, with the first packet of that kind, and is kept. With `cached`, so are the feature maps
    that it makes of the samples: picking and training then start from these.
    """

    upper: GradientClient
    cached: bool = False
    whole = GradientClient()

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        seen = self._seen(task)  # refuses a model that cannot be split, also in a warm round
        if down.tags.get("phase") == WARM:
            carry, steps = self.whole.begin(task, down, shard, own, context)
            return {**carry, "split": None}, steps
        model = replace(down, tensors={**own.get("lower", {}), **down.tensors})
        maps = self._maps(task, down, model, shard, own) if self.cached else None
        above = shard if maps is None else Shard(maps, shard.y)
        carry, steps = self.upper.begin(seen, model, above, own, context)
        return {**carry, "split": self.upper.split, "finish": {**carry["finish"], "maps": maps}}, steps

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        if carry["split"] is None:
            return self.whole.step(task, carry, batch)
        return self.upper.step(self._seen(task), carry, batch)

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        if carry["split"] is None:
            up, own = self.whole.finish(task, down, carry, shard, own, context)
            return replace(up, scalars={**up.scalars, WARM: 1.0}), own
        up, own = self.upper.finish(task, down, carry, shard, own, context)
        maps = carry["finish"]["maps"]
        sent = {name: value for name, value in down.tensors.items() if name not in up.tensors}
        if not sent and maps is own.get("maps"):
            return up, own  # the same object, so that it is not written down again
        return up, {"lower": sent or own.get("lower", {}), **({} if maps is None else {"maps": maps})}

    def _maps(self, task: Task, down: Packet, model: Packet, shard: Shard, own: State) -> Tensor:
        kept: Tensor | None = own.get("maps")
        # φ comes again where the server does not know that it came, and other samples have other maps.
        if kept is not None and len(kept) == len(shard) and own["lower"].keys().isdisjoint(down.tensors):
            return kept
        return features_of(task, model.tensors, shard.x, str(self.upper.split))

    def _seen(self, task: Task) -> Task:
        return replace(task, model=UpperPart(task.model, str(self.upper.split))) if self.cached else task
