"""FedAT (Shi, Sheffield thesis, §5.3): device models of any depth, and attention transfer to and from a global one.

Down: w_k, the device's own model. A device: E epochs of SGD; then it makes the maps F = φ_k(x) at `level` of a share of
its samples. Up: w_k, n_k, the pairs (F, y), its metadata. for every device on a copy of the global model w:
1. CE on generic data + beta·AT from w_k. 2. The part θ above `level` is trained on the metadata. 3. θ is frozen, and
the part φ below it learns CE on generic data + beta·AT from w_k at the levels inside φ, so that both fit again.
Then w ← Σ p_k·copy_k, p_k = n_k / Σ n, and every w_k learns CE on generic data + beta·AT from w.
AT = Σ over levels of ‖Q − Q'‖₂, mean over the samples; Q = Σ over channels of |f|², flattened, over its ℓ2 norm.

The generic data is what the server holds, with labels: `public: 0.1`. Device models are those of `model.ladder`. All
models must have the same maps at `level`, and maps of the same height and width at the other levels they share.

Without metadata (metadata_share=0) steps 2 and 3 are left out; `alignment` changes step 3 alone. Departures: the maps
of a teacher are those of evaluation mode, made once a round; all copies see the generic data in the same order. On 8×8
digits the source's beta of 1000 drowns all else at its learning rate, with BatchNorm or without: take 1 or less there.

    >>> import undergrowth as ug
    >>> options = {"beta": 1.0, "metadata_share": 0.2, "transfer_lr": 0.05, "metadata_lr": 0.05}
    >>> result = ug.run(method="fedat", options=options, public=0.1, clients=4, rounds=2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from undergrowth.core import Context, Fitted, Method, Packet, Shard, State, Task, Weights, fold, option
from undergrowth.core.reducers import WeightedMean
from undergrowth.learning import CrossEntropy, LowerPart, Random, UpperPart, features_of
from undergrowth.learning.attention import Attention, attention_of
from undergrowth.learning.distillation import taught
from undergrowth.learning.ladder import LadderClient, check_alike, generic_data, levels_of
from undergrowth.learning.own_models import OwnModels, all_models, seen_by, weights_of

ALIGNMENTS = ("attention", "plain", "none")


@dataclass(frozen=True)
class MetadataClient(LadderClient):
    """Sends the maps and labels of some of its samples along."""

    level: str = "low"
    share: float = 1.0

    def conclude(
        self, task: Task, down: Packet, trained: Packet, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        if not self.share:
            return trained, own
        if self.share < 1:
            shard = shard.take(Random(self.share).pick(task, trained.tensors, shard, context.generator("metadata")))
        maps = features_of(task, trained.tensors, shard.x, self.level)
        return replace(trained, tensors={**trained.tensors, "metadata/maps": maps, "metadata/labels": shard.y}), own


@dataclass(frozen=True)
class AttentionTransfer(OwnModels):
    """Three steps for every device, the mean of the copies, and attention from it back to the devices' models."""

    beta: float = 1000.0
    level: str = "low"
    transfer: tuple[float, int] = (0.1, 2)  # learning rate and epochs
    metadata: tuple[float, int] = (0.1, 2)
    batch: int = 64
    alignment: str = ALIGNMENTS[0]

    def init(self, task: Task, context: Context) -> State:
        public = generic_data(task, "fedat", labelled=True)
        check_alike(task, public.x, (self.level,), levels_of(task))
        return super().init(task, context)

    def teach(
        self, task: Task, model: Weights, uploads: Mapping[str, Packet], context: Context
    ) -> tuple[Weights, Mapping[str, Weights]]:
        mean = None
        for path, up in uploads.items():
            copy = self._copy(task, model, up, context)
            mean = fold(WeightedMean(), mean, path, Packet(copy, {"samples": up.scalars["samples"]}))
        after = mean.tensors if mean is not None else model
        maps = self._attention(task, after)
        return after, {
            path: self._transferred(seen_by(task, up), weights_of(up), maps, context._replace(turn=3))
            for path, up in uploads.items()
        }

    def _copy(self, task: Task, model: Weights, up: Packet, context: Context) -> Weights:
        """The global model after what one device has to teach."""
        maps = self._attention(seen_by(task, up), weights_of(up))
        model = self._transferred(task, model, maps, context)
        metadata = up.part("metadata").tensors
        if not metadata:
            return model
        upper, lower = UpperPart(task.model, self.level), LowerPart(task.model, self.level)
        pairs, (lr, epochs) = {"x": metadata["maps"], "y": metadata["labels"]}, self.metadata
        learned = taught(
            replace(task, model=upper), model, pairs, CrossEntropy(), context._replace(turn=1),
            lr=lr, epochs=epochs, batch=self.batch, split=self.level,
        )  # fmt: skip
        if self.alignment == "none":
            return learned
        maps = maps if self.alignment == "attention" else {}
        return self._transferred(replace(task, model=lower), learned, maps, context._replace(turn=2), lower.inside)

    def _attention(self, task: Task, weights: Weights) -> dict[str, Tensor]:
        assert task.public is not None
        return attention_of(task, weights, task.public.x, levels_of(task)) if self.beta else {}

    def _transferred(
        self, task: Task, weights: Weights, maps: Mapping[str, Tensor], context: Context, inside: tuple[str, ...] = ()
    ) -> Weights:
        """Trained on the generic data, towards these attention maps."""
        assert task.public is not None
        levels = [level for level in levels_of(task) if not inside or level in inside]
        objective = CrossEntropy() + self.beta * Attention(levels) if maps else CrossEntropy()
        data, (lr, epochs) = {"x": task.public.x, "y": task.public.y, **maps}, self.transfer
        return taught(task, weights, data, objective, context, lr=lr, epochs=epochs, batch=self.batch)


@dataclass(frozen=True)
class FedAT(Method):
    needs_public: ClassVar[bool] = True

    beta: float = option(1000.0, "weight of the attention transfer", at_least=0)
    level: str = option("low", "level at which maps are sent and models are split")
    metadata_share: float = option(1.0, "share of the samples whose maps are sent", at_least=0, at_most=1)
    transfer_lr: float = option(0.1, "learning rate of training with attention transfer", above=0)
    transfer_epochs: int = option(2, "epochs of it", at_least=1)
    metadata_lr: float = option(0.1, "learning rate of training on metadata", above=0)
    metadata_epochs: int = option(2, "epochs of it", at_least=1)
    server_batch: int = option(64, "samples in a batch of the server's training", at_least=1)
    alignment: str = option(ALIGNMENTS[0], "step 3: with attention, without, or left out", choices=ALIGNMENTS)

    @property
    def client(self) -> MetadataClient:  # type: ignore[override]
        return MetadataClient(level=self.level, share=self.metadata_share)

    @property
    def server(self) -> AttentionTransfer:  # type: ignore[override]
        transfer, metadata = (self.transfer_lr, self.transfer_epochs), (self.metadata_lr, self.metadata_epochs)
        return AttentionTransfer(0, self.beta, self.level, transfer, metadata, self.server_batch, self.alignment)

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights | Fitted]:
        return all_models(task, state)
