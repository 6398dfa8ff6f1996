"""MapClient: local training, and feature maps that the received model makes of some samples, sent along."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from undergrowth.core import All, Carry, Context, Packet, Shard, State, Steps, Task, Weights
from undergrowth.learning.clustering import representatives
from undergrowth.learning.features import features_of
from undergrowth.learning.gradient_client import GradientClient
from undergrowth.learning.selectors import FewShot

PLAIN = "plain"  # the tag of a packet that asks for no maps


@dataclass(frozen=True)
class MapClient(GradientClient):
    """Sends, of every class, the maps at `level` nearest to the centres of its clusters; or as many at random; or all.

    A packet has its model under "model" both ways. The maps go up as "maps/maps", their labels as "maps/labels".
    """

    level: str = "up"
    components: int = 200
    clusters: int = 20
    selection: str = "kmeans"  # kmeans | random | all

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        return down.part("model").tensors

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        carry, steps = super().begin(task, down, shard, own, context)
        if PLAIN in down.tags:
            return carry, steps
        maps = features_of(task, carry["received"], shard.x, self.level)
        kept = self._kept(task, maps, shard, context.generator("maps"))
        sent = {"maps": maps[kept.to(maps.device)], "labels": shard.y[kept.to(shard.y.device)]}
        return {**carry, "finish": {**carry["finish"], "maps": sent}}, steps

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        up, own = super().finish(task, down, carry, shard, own, context)
        both = Packet.join({"model": Packet(up.tensors), "maps": Packet(carry["finish"].get("maps", {}))})
        return replace(both, scalars=up.scalars), own

    def _kept(self, task: Task, maps: Tensor, shard: Shard, generator: torch.Generator) -> Tensor:
        if self.selection == "kmeans":
            return representatives(maps, shard.y, lambda count: min(count, self.clusters), self.components, generator)
        chosen = All() if self.selection == "all" else FewShot(self.clusters)
        return chosen.pick(task, {}, shard, generator)
