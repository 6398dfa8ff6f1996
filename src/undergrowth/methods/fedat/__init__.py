"""FedAT (Shi, Sheffield thesis, §5.3): device models of any depth, and attention transfer to and from a global one.

Down: w_k, the device's own model. A device: E epochs of SGD; then it computes the maps F = φ_k(x) at `level` of a
fraction of its samples. Up: w_k, n_k, the pairs (F, y), its metadata. Server, for every device on a copy of the global
model w: 1. CE on public data + beta·AT from w_k. 2. The part θ above `level` is trained on the metadata. 3. θ is
frozen, and the part φ below it learns CE on public data + beta·AT from w_k at the levels inside φ, so that both fit.
Then w ← Σ p_k·copy_k, p_k = n_k / Σ n, and every w_k learns CE on public data + beta·AT from w.
AT = Σ over levels of the mean of (Q − Q')² over samples and map elements; Q = Σ over channels of f², flattened, over
its ℓ2 norm. This is the code of Zagoruyko and Komodakis, from which the source takes beta = 1000. Eq. 5.14 prints
Σ over levels of ‖Q − Q'‖₂, mean over the samples: `form: printed`. With beta = 1000 that form dominates the loss, and
models learn next to nothing (docs/decisions/0023).

The mean divides by the number of map elements, so beta depends on the size of the maps: 1000 belongs to maps of 32×32
pixels at `low`. For smaller maps, scale it down with the number of pixels: 1000·16/1024 ≈ 16 for maps of 4×4.

The public data has labels: `public: 0.1`. Device models are those of `model.ladder`. All models must have the same maps
at `level`, and maps of the same height and width at the other levels they share. Local training is that of the run:
the source sets train.epochs to 5 and train.lr to 0.01.

Without metadata (metadata_share=0) steps 2 and 3 are left out; `alignment` changes step 3 alone. Departures: the maps
of a teacher are those of evaluation mode, computed once a round; all copies see the public data in the same order.
With `augment_public`, all models see the public images changed as `data.augment` says, differently in every round.
With `augment_metadata`, a device computes its maps from images that are changed in the same way.

Classes that only devices have: as above, the mean of the copies knows next to nothing of them (docs/decisions/0064).
With `metadata_of: all`, step 2 is one for all: the mean of the copies after step 1 learns the metadata of all devices
that trained (BatchNorm cannot on one sample), and step 3 goes on with copies of the result. With `public_classes:
present`, CE on public data is among the classes that they have: among all classes, it teaches every model that the
others do not occur. `shared_start` gives the devices' models the first weights of w wherever names and shapes agree, so
that the maps of different models begin alike. With `upper_statistics: updated`, BatchNorm in the frozen part of step 3
normalises by the batch, and its statistics follow.

    >>> import undergrowth as ug
    >>> options = {"beta": 16.0, "metadata_share": 0.2, "transfer_lr": 0.05, "metadata_lr": 0.05}
    >>> result = ug.run(method="fedat", options=options, public=0.1, clients=4, rounds=2)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from undergrowth.core import Context, InputError, Method, ModelWeights, Packet, Shard, State, Task, Weights, option
from undergrowth.core.names import AUGMENT, SAMPLES, X, Y
from undergrowth.learning import GradientClient, Objective, RandomSelector, TaskLoss, Trained
from undergrowth.learning.distillation import (
    check_same_shapes,
    public_data,
    server_client,
    shared_levels,
    train_all_on_server,
)
from undergrowth.learning.features import LowerModel, UpperModel, features_of
from undergrowth.learning.own_models import OwnModelsServer, all_models, by_model, sender_task, uploaded_weights
from undergrowth.learning.selectors import count_selected
from undergrowth.learning.servers import has_no_samples, mean_of_models
from undergrowth.methods.fedat.attention import FORMS, AttentionTransfer, attention_of
from undergrowth.methods.fedat.present_classes import PresentClassesLoss, present_classes

ALIGNMENTS = ("attention", "plain", "none")
SENDERS = ("device", "all")
STATISTICS = ("kept", "updated")
CLASSES = ("all", "present")


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
            shard = _augmented(task, shard, trained.context, "augment metadata")
        maps = features_of(task, trained.tensors, shard.x, self.options.level)
        tensors = {**trained.tensors, "metadata/maps": maps, "metadata/labels": shard.y}
        return Packet(tensors, trained.scalars), trained.own

    def samples_after_steps(self, size: int) -> int:
        return count_selected(self.options.metadata_share, size) if self.options.metadata_share else 0


@dataclass(frozen=True)
class FedATServer(OwnModelsServer):
    """Three steps for every device, the mean of the copies, and attention from it back to the devices' models."""

    options: FedAT

    @property
    def shared_start(self) -> bool:
        return self.options.shared_start

    def init(self, task: Task, context: Context) -> State:
        public = public_data(task, "fedat", labelled=True)
        for name in ("augment_public", "augment_metadata"):
            if getattr(self.options, name) and task.augmentation is None:
                raise InputError(f"method.{name} true: images are not augmented here; add data.augment: crop+flip")
        check_same_shapes(task, public.x, (self.options.level,), shared_levels(task))
        for each in (task.model, *task.ladder.values()):
            each.check_batch("method.server_batch", self.options.server_batch)
        return super().init(task, context)

    def teach(
        self, task: Task, model: Weights, uploads: Mapping[str, Packet], context: Context
    ) -> tuple[Weights, Mapping[str, Weights]]:
        if self.options.augment_public:
            task = replace(task, public=_augmented(task, public_data(task, "fedat"), context, AUGMENT))
        after = _mean(model, uploads, self._teach_copies(task, model, uploads, context))
        maps = self._attention(task, after)
        taught: dict[str, Weights] = {}
        for own, models in by_model(task, uploads):
            trained = self._transfer(own, list(models.values()), [maps] * len(models), context._replace(turn=3))
            taught.update(zip(models, trained, strict=True))
        return after, taught

    def _teach_copies(
        self, task: Task, model: Weights, uploads: Mapping[str, Packet], context: Context
    ) -> Sequence[Weights]:
        """For each upload, the global model after the three steps with it."""
        options, ups = self.options, list(uploads.values())
        teachers = [self._attention(sender_task(task, up), uploaded_weights(up)) for up in ups]
        copies: list[Weights] = [*self._transfer(task, [model] * len(ups), teachers, context)]
        sent = {n: pairs for n, up in enumerate(ups) if up.scalars[SAMPLES] and (pairs := up.part("metadata").tensors)}
        if not sent:
            return copies
        if options.metadata_of == "all":
            pairs = {name: torch.cat([each[name] for each in sent.values()]) for name in ("maps", "labels")}
            learned = self._learn_metadata(task, [_mean(model, uploads, copies)], [pairs], context)
            places, copies = list(range(len(ups))), [*learned] * len(ups)
        else:
            places = list(sent)
            learned = self._learn_metadata(task, [copies[place] for place in places], list(sent.values()), context)
            for place, weights in zip(places, learned, strict=True):
                copies[place] = weights
        lower = LowerModel(task.model, options.level, options.upper_statistics)
        if options.alignment == "none" or not lower.trainable():  # the part below `level` may be frozen
            return copies
        maps = [teachers[place] if options.alignment == "attention" else {} for place in places]
        chosen, turn = [copies[place] for place in places], context._replace(turn=2)
        aligned = self._transfer(replace(task, model=lower), chosen, maps, turn, lower.inside)
        for place, weights in zip(places, aligned, strict=True):
            copies[place] = weights
        return copies

    def _learn_metadata(
        self, task: Task, models: Sequence[Weights], metadata: Sequence[Mapping[str, Tensor]], context: Context
    ) -> Sequence[Weights]:
        """The weights of each model after the part above `level` has learned its metadata."""
        options = self.options
        upper = replace(task, model=UpperModel(task.model, options.level))
        pairs = [{X: sent["maps"], Y: sent["labels"]} for sent in metadata]
        training = (options.metadata_lr, options.metadata_epochs, options.server_batch, options.level)
        return train_all_on_server(upper, server_client(TaskLoss(), *training), models, pairs, context._replace(turn=1))

    def _attention(self, task: Task, weights: Weights) -> dict[str, Tensor]:
        x = public_data(task, "fedat").x
        return attention_of(task, weights, x, shared_levels(task)) if self.options.beta else {}

    def _transfer(
        self,
        task: Task,
        models: Sequence[Weights],
        maps: Sequence[Mapping[str, Tensor]],
        context: Context,
        inside: tuple[str, ...] = (),
    ) -> list[dict[str, Tensor]]:
        """The weights of each model after training on the public data, towards its attention `maps`."""
        options, public = self.options, public_data(task, "fedat")
        levels = [level for level in shared_levels(task) if not inside or level in inside]
        transfer = options.beta * AttentionTransfer(levels, options.form)
        loss: Objective = TaskLoss()
        entries = {X: public.x, Y: public.y}
        if options.public_classes == "present":
            loss = PresentClassesLoss()
            entries |= present_classes(public, task.classes)
        objective = loss + transfer if any(maps) else loss
        data = [{**entries, **each} for each in maps]
        student = server_client(objective, options.transfer_lr, options.transfer_epochs, options.server_batch)
        return train_all_on_server(task, student, models, data, context)


def _augmented(task: Task, shard: Shard, context: Context, purpose: str) -> Shard:
    """The samples changed as `data.augment` says, the same all through a round."""
    augmentation = task.augmentation
    assert augmentation is not None  # `init` has checked it
    draws = augmentation.draw(len(shard), context.generator(purpose))
    return Shard(augmentation.apply(shard.x, draws.to(shard.x.device)), shard.y)


def _mean(model: Weights, uploads: Mapping[str, Packet], copies: Sequence[Weights]) -> Weights:
    """Σ p_k·copy_k; `model` if no device trained on a sample."""
    total = mean_of_models(zip(copies, (up.scalars[SAMPLES] for up in uploads.values()), strict=True))
    return model if total is None or has_no_samples(total) else total.tensors


@dataclass(frozen=True)
class FedAT(Method):
    needs_public: ClassVar[bool] = True

    beta: float = option(1000.0, "weight of the attention transfer; depends on the size of the maps", at_least=0)
    form: str = option(FORMS[0], "distance of attention maps; printed: the norm of eq. 5.14", choices=FORMS)
    level: str = option("low", "level at which maps are sent and models are split")
    metadata_share: float = option(1.0, "fraction of the samples whose maps are sent", at_least=0, at_most=1)
    transfer_lr: float = option(0.1, "learning rate of training with attention transfer", above=0)
    transfer_epochs: int = option(2, "epochs of training with attention transfer", at_least=1)
    metadata_lr: float = option(0.1, "learning rate of training on metadata", above=0)
    metadata_epochs: int = option(2, "epochs of training on metadata", at_least=1)
    server_batch: int = option(64, "samples in a batch of the server's training", at_least=1)
    alignment: str = option(ALIGNMENTS[0], "step 3: with attention, without, or left out", choices=ALIGNMENTS)
    metadata_of: str = option(
        SENDERS[0], "step 2: a copy learns its device's metadata, or their mean that of all", choices=SENDERS
    )
    upper_statistics: str = option(
        STATISTICS[0], "step 3: BatchNorm's statistics of the part above", choices=STATISTICS
    )
    public_classes: str = option(
        CLASSES[0], "loss on public data: among all classes, or those that they have", choices=CLASSES
    )
    augment_public: bool = option(False, "change the public images in every round as data.augment says")
    augment_metadata: bool = option(False, "compute maps from images changed as data.augment says")
    shared_start: bool = option(False, "devices' models start with the global model's weights where these fit")

    @property
    def needs_classes(self) -> str:
        absent = "method.public_classes present leaves out the classes that the public data do not have"
        return absent if self.public_classes == "present" else ""

    @property
    def client(self) -> FedATClient:
        return FedATClient(options=self)

    @property
    def server(self) -> FedATServer:
        return FedATServer(self)

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights | ModelWeights]:
        return all_models(task, state)


__all__ = ["FedAT"]
