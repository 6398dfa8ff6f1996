"""The server side of FedAT: the losses of its training on public data, and the three steps for every device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.core import Context, InputError, Packet, Shard, State, Task, Weights
from undergrowth.core.names import AUGMENT, HELD, SAMPLES, X, Y
from undergrowth.learning import LossInputs, Objective, TaskLoss
from undergrowth.learning.distillation import (
    check_batch,
    check_same_shapes,
    public_data,
    server_client,
    shared_levels,
    train_all_on_server,
)
from undergrowth.learning.features import EVALUATION_BATCH, LowerModel, UpperModel, attention_map
from undergrowth.learning.own_models import OwnModelsServer, by_model, sender_task, uploaded_weights
from undergrowth.learning.servers import has_no_samples, mean_of_models

if TYPE_CHECKING:
    from undergrowth.methods.fedat import FedAT

FORMS = ("mean-square", "printed")
TARGET = "attention"  # prefix of batch entries: the teacher's attention, by level


def attention(features: Tensor) -> Tensor:
    """The attention map of each sample, flattened and of length 1. Flat features count as a map of one channel."""
    strength = attention_map(features) if features.dim() > 2 else features.square()
    return F.normalize(strength.flatten(1))


def attention_of(task: Task, weights: Weights, x: Tensor, levels: Sequence[str]) -> dict[str, Tensor]:
    """The batch entries that `AttentionTransfer` compares with: the attention of a fixed model in evaluation mode."""
    with torch.no_grad():
        outputs = [task.model.run(weights, batch, maps=levels).maps for batch in x.split(EVALUATION_BATCH)]
    return {f"{TARGET}/{level}": torch.cat([attention(maps[level]) for maps in outputs]) for level in levels}


@dataclass(frozen=True)
class AttentionTransfer(Objective):
    """Σ over levels of the distance of the attention from the teacher's, mean over the batch.

    form: the distance of a sample at one level. `mean-square`: the mean of the squared differences over the elements of
    the map; `printed`: the ℓ2 norm of the differences. The batch needs the entries of `attention_of`.
    """

    maps: Sequence[str] = ()
    form: str = FORMS[0]

    def __call__(self, inputs: LossInputs) -> Tensor:
        gaps = [attention(inputs.output.maps[level]) - inputs.batch[f"{TARGET}/{level}"] for level in self.maps]
        if self.form == "printed":
            return inputs.mean(torch.stack([torch.linalg.vector_norm(gap, dim=1) for gap in gaps]).sum(0))
        return inputs.mean(torch.stack([gap.square().mean(1) for gap in gaps]).sum(0))


def present_classes(shard: Shard, classes: int) -> dict[str, Tensor]:
    """The batch entry that `PresentClassesLoss` needs: for each sample, which classes the shard has."""
    present = torch.zeros(classes, dtype=torch.bool, device=shard.y.device).index_fill(0, shard.y, True)
    return {HELD: present.expand(len(shard), -1)}


@dataclass(frozen=True)
class PresentClassesLoss(Objective):
    """The loss of the task with the logits of absent classes left out, which neither rise nor fall."""

    def __call__(self, inputs: LossInputs) -> Tensor:
        logits, present = inputs.output.logits, inputs.batch[HELD]
        present = F.pad(present, (0, logits.shape[1] - present.shape[1]))  # a model may have more outputs than classes
        # Not -inf: of samples that only pad a stack, all classes are absent, and 0 times infinity is not a number.
        kept = logits.masked_fill(~present, torch.finfo(logits.dtype).min)
        return TaskLoss()(replace(inputs, output=replace(inputs.output, logits=kept)))


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
        check_batch(task, "method.server_batch", self.options.server_batch)
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


def _mean(model: Weights, uploads: Mapping[str, Packet], copies: Sequence[Weights]) -> Weights:
    """Σ p_k·copy_k; `model` if no device trained on a sample."""
    samples = [up.scalars[SAMPLES] for up in uploads.values()]
    total = mean_of_models(zip(copies, samples, strict=True))
    return model if total is None or has_no_samples(total) else total.tensors


def augmented(task: Task, shard: Shard, context: Context, purpose: str) -> Shard:
    """The samples changed as `data.augment` says, the same all through a round."""
    augmentation = task.augmentation
    assert augmentation is not None  # `init` has checked it
    draws = augmentation.draw(len(shard), context.generator(purpose))
    return Shard(augmentation.apply(shard.x, draws.to(shard.x.device)), shard.y)
