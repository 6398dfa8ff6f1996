"""FjORD (Horváth et al. 2021): ordered dropout; every step trains a random number of first channels.

Down: the slice of w with the first r·C channels of every hidden layer, where r is the largest that fits the device. A
device: E epochs of SGD; for every step it draws a ratio from those of `ratios` that are at most r, with equal
probability, and trains the first channels that are in it; the others do not change. Up: the slice, n_k, r.
Server: every coordinate i ← Σ n_k·w_k,i / Σ n_k over the devices k whose slice has it; a coordinate in no slice keeps
its value. The first channels learn to work without the others, so a narrow slice of the result is a usable model.

r is chosen as in HeteroFL: by the device's speed divided by that of the fastest device of the same server, or in turn
if all are equally fast, and smaller where memory or deadline require it. `statistics` is as in heterofl. With
ratios=(1.0,) and statistics=False it is FedAvg, bit for bit.

distill (self-distillation): every step trains the whole slice and the drawn ratio p together. The loss is
CE(z_r, y) + KL(softmax(z_r) ‖ softmax(z_p)): the whole slice learns the labels, and its first p·C channels learn its
predictions, which get no gradient from the second term. A step then costs about twice as much.

Departures: a step with a smaller ratio is computed with zeros inside the device's slice, so that devices with different
ratios can be computed at once. It is priced as a step of the whole slice; in the paper it costs less. The paper keeps
separate BatchNorm statistics for every ratio; here the statistics of the whole model are measured. With
statistics=False, a narrow step leaves the running statistics of the other channels unchanged.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fjord", options={"ratios": [1.0, 0.5]}, model="mlp", fleet="mixed-edge", rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from undergrowth.core import Batch, Carry, Context, Method, Packet, Shard, State, Steps, Task, option
from undergrowth.core.names import BUFFERS, KEYS, PARAMETERS, RECEIVED, X
from undergrowth.learning import (
    GradientClient,
    LossInputs,
    Objective,
    TaskLoss,
    Trained,
    WidthClient,
    WidthOptions,
    WidthServer,
    widths_of,
)
from undergrowth.learning.descent import Descent
from undergrowth.learning.objectives import divergences
from undergrowth.learning.slice_client import RATIO, slice_upload
from undergrowth.learning.width import SlicedModel

KEPT = "kept"  # entry of the carry: channels that each of the coming steps trains, steps × sets of channels
MASKS = "masks"  # entry of the carry during a step: the positions of these channels in the weights


@dataclass(frozen=True)
class SelfDistillation(Objective):
    """KL(softmax(z_r) ‖ softmax(z_p)) of the logits z_p with the first channels only, which `received` names.

    For tasks other than classification see `divergences`.
    """

    def __call__(self, inputs: LossInputs) -> Tensor:
        model, teacher = inputs.task.model, inputs.output.logits.detach()
        assert isinstance(model, SlicedModel)
        masks = widths_of(model.whole).masks(inputs.trained, inputs.received[KEPT])
        narrow = {name: value * masks[name] if name in masks else value for name, value in inputs.trained.items()}
        student = model.run(
            {**inputs.received, **narrow}, inputs.batch[X], training=True, keys=inputs.batch.get(KEYS)
        ).logits
        return inputs.mean(divergences(student, teacher, inputs.task.kind))


@dataclass(frozen=True, kw_only=True)
class FjORDClient(GradientClient):
    options: FjORD
    view: type[SlicedModel] = SlicedModel

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        carry, steps = super().begin(task, down, shard, own, context)
        ratios = [ratio for ratio in self.options.ratios if ratio <= down.scalars[RATIO]]
        sets = widths_of(task.model).channels
        kept = torch.tensor([[each.kept(ratio) for each in sets] for ratio in ratios], dtype=torch.int64)
        # The number of draws is a power of two, because engines compute devices at once whose carries have one shape.
        count = 1 << max(0, len(steps) - 1).bit_length()
        draws = torch.randint(len(ratios), (count,), generator=context.generator("width"))
        return {**carry, KEPT: kept[draws].to(shard.x.device)}, steps

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        if self.options.distill:
            received, kept = carry[RECEIVED], carry[KEPT]
            after = super().step(task, {**carry, RECEIVED: {**received, KEPT: kept[..., 0, :]}}, batch)
            return {**after, RECEIVED: received, KEPT: kept.roll(-1, -2)}
        parameters, buffers, kept = carry[PARAMETERS], carry[BUFFERS], carry[KEPT]
        masks = widths_of(task.model).masks({**parameters, **buffers}, kept[..., 0, :])
        narrow = {name: value * masks[name] if name in masks else value for name, value in parameters.items()}
        after = dict(super().step(task, {**carry, PARAMETERS: narrow, MASKS: masks}, batch))
        del after[MASKS]
        for part, before in ((PARAMETERS, parameters), (BUFFERS, buffers)):
            after[part] = {
                name: torch.where(masks[name], value, before[name]) if name in masks else value
                for name, value in after[part].items()
            }
        return {**after, KEPT: kept.roll(-1, -2)}

    def gradients(
        self, task: Task, carry: Carry, batch: Batch, descent: Descent | None
    ) -> tuple[list[Tensor], dict[str, Tensor], Tensor]:
        found, buffers, loss = super().gradients(task, carry, batch, descent)
        if MASKS not in carry or not carry["optimiser"]:
            return found, buffers, loss
        # An activation such as a sigmoid is not 0 at 0: weights that read a dropped channel would get a gradient. It
        # must not reach the optimiser's state, which steps with these weights use later.
        masks = [carry[MASKS].get(name) for name in carry[PARAMETERS]]
        narrow = [value if mask is None else value * mask for value, mask in zip(found, masks, strict=True)]
        return narrow, buffers, loss

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        return slice_upload(self.options, trained)


@dataclass(frozen=True)
class FjORD(WidthOptions, Method):
    distill: bool = option(False, "the drawn ratio learns the predictions of the device's whole slice, not the labels")

    @property
    def client(self) -> WidthClient:
        objective = TaskLoss() + SelfDistillation() if self.distill else TaskLoss()
        return WidthClient(FjORDClient(objective, options=self))

    @property
    def server(self) -> WidthServer:
        return WidthServer(self)
