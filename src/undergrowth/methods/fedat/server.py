"""The server side of FedAT: three steps for every device, their mean, and the way back to the devices' models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from undergrowth.core import Context, InputError, Packet, State, Task, Weights
from undergrowth.core.names import AUGMENT, SAMPLES, X, Y
from undergrowth.learning import Objective, TaskLoss
from undergrowth.learning.distillation import (
    check_same_shapes,
    public_data,
    server_client,
    shared_levels,
    train_all_on_server,
)
from undergrowth.learning.features import LowerModel, UpperModel
from undergrowth.learning.own_models import OwnModelsServer, by_model, sender_task, uploaded_weights
from undergrowth.learning.servers import has_no_samples, mean_of_models
from undergrowth.methods.fedat.attention import AttentionTransfer, attention_of
from undergrowth.methods.fedat.client import augmented
from undergrowth.methods.fedat.present_classes import PresentClassesLoss, present_classes

if TYPE_CHECKING:
    from undergrowth.methods.fedat import FedAT


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
            task = replace(task, public=augmented(task, public_data(task, "fedat"), context, AUGMENT))
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
        sent = {place: pairs for place, up in enumerate(ups) if (pairs := up.part("metadata").tensors)}
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


def _mean(model: Weights, uploads: Mapping[str, Packet], copies: Sequence[Weights]) -> Weights:
    """Σ p_k·copy_k; `model` if no device trained on a sample."""
    samples = [up.scalars[SAMPLES] for up in uploads.values()]
    total = mean_of_models(zip(copies, samples, strict=True))
    return model if total is None or has_no_samples(total) else total.tensors
