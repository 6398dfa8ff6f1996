"""The device's side of FedAT: its trained model, and the maps of some of its samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from undergrowth.core import Context, Packet, Shard, State, Task
from undergrowth.learning import GradientClient, RandomSelector, Trained
from undergrowth.learning.features import features_of
from undergrowth.learning.selectors import count_selected

if TYPE_CHECKING:
    from undergrowth.methods.fedat import FedAT


@dataclass(frozen=True, kw_only=True)
class FedATClient(GradientClient):
    """Sends the maps and labels of a fraction of its samples beside the model."""

    options: FedAT

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        task, shard, fraction = trained.task, trained.shard, self.options.metadata_share
        if not fraction:
            return trained.packet, trained.own
        if fraction < 1:
            generator = trained.context.generator("metadata")
            shard = shard.take(RandomSelector(fraction).pick(task, trained.tensors, shard, generator))
        if self.options.augment_metadata:
            shard = augmented(task, shard, trained.context, "augment metadata")
        maps = features_of(task, trained.tensors, shard.x, self.options.level)
        tensors = {**trained.tensors, "metadata/maps": maps, "metadata/labels": shard.y}
        return Packet(tensors, trained.scalars), trained.own

    def samples_after_steps(self, size: int) -> int:
        return count_selected(self.options.metadata_share, size) if self.options.metadata_share else 0


def augmented(task: Task, shard: Shard, context: Context, purpose: str) -> Shard:
    """The samples changed as `data.augment` says, the same all through a round."""
    augmentation = task.augmentation
    assert augmentation is not None  # `init` has checked it
    draws = augmentation.draw(len(shard), context.generator(purpose))
    return Shard(augmentation.apply(shard.x, draws.to(shard.x.device)), shard.y)
