"""The device of PruneFL: trains the weights that are left and, if it is asked for them, sends gradients of all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from undergrowth.core import Model, Output, Packet, State, Task, Weights
from undergrowth.core.names import PHASE, X, Y
from undergrowth.learning import GradientClient, TaskLoss, Trained
from undergrowth.learning.features import ModelView
from undergrowth.learning.gradient_client import gradients_of
from undergrowth.methods.prunefl.masks import prunable, put_back, unpack

MASK, GRADIENT = "mask/", "gradient/"  # prefixes of tensors in packets
USES = "uses/"  # prefix of scalars of an upload: uses of each weight of a tensor
INITIAL, ADAPTING, TRAINING = "initial", "adapting", "training"  # phases, in the tag of a download


class MaskedModel(ModelView):
    """A model whose removed weights are 0, and so are their gradients. Its weights include the masks."""

    def run(self, weights: Weights, x: Tensor, **options: Any) -> Output:
        masked = {k: v * weights[MASK + k] if MASK + k in weights else v for k, v in weights.items()}
        return self.whole.run(masked, x, **options)


@dataclass(frozen=True)
class MaskedClient(GradientClient):
    """Trains the weights that are left and sends them; in a round that chooses the mask also the gradient of all."""

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        packed = {name.removeprefix(MASK): value for name, value in down.tensors.items() if name.startswith(MASK)}
        masks = {name: unpack(value, task.model.shapes[name]) for name, value in packed.items()}
        values = {name: value for name, value in down.tensors.items() if not name.startswith(MASK)}
        return {**put_back(values, masks), **{MASK + name: mask for name, mask in masks.items()}}

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        def left(name: str, value: Tensor) -> Tensor:
            mask = trained.received.get(MASK + name)
            if mask is None:
                return value
            # Without values, as many weights are left as came down.
            return value.new_empty(trained.down.tensors[name].shape) if value.is_meta else value[mask]

        tensors, scalars = {name: left(name, value) for name, value in trained.tensors.items()}, dict(trained.scalars)
        if trained.down.tags[PHASE] != TRAINING:
            assert isinstance(trained.task.model, MaskedModel)
            whole, names = trained.task.model.whole, prunable(trained.task.model)
            found = _gradients(replace(trained.task, model=whole), trained, names)
            tensors |= {GRADIENT + name: value for name, value in found.items()}
            uses = uses_of_weights(whole, trained.received, trained.shard.x[:1])
            scalars |= {USES + name: uses[name] for name in names}
        return Packet(tensors, scalars), trained.own


def _gradients(task: Task, trained: Trained, names: list[str]) -> dict[str, Tensor]:
    """The gradient of the mean loss of the device's samples at the received model, by batches of the training size."""
    received, shard = trained.received, trained.shard
    parameters = {name: received[name] for name in names}
    buffers = {name: received[name] for name in task.model.buffers}
    sums, count = {name: torch.zeros_like(value) for name, value in parameters.items()}, 0
    for x, y in zip(shard.x.split(task.train.batch), shard.y.split(task.train.batch), strict=True):
        if len(x) < task.model.smallest_batch():
            continue
        found, _, _ = gradients_of(task, TaskLoss(), parameters, buffers, received, {X: x, Y: y})
        sums = {name: sums[name] + len(x) * each for name, each in zip(names, found, strict=True)}
        count += len(x)
    return {name: value / max(1, count) for name, value in sums.items()}


def uses_of_weights(model: Model, weights: Weights, x: Tensor) -> dict[str, float]:
    """How often a forward pass of one sample `x` uses each weight of a tensor, by the tensor's name."""
    uses: dict[str, float] = {}

    def count(name: str, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        uses[name] = uses.get(name, 0.0) + output.numel() / len(weights[name])

    layers = {name: model.module.get_submodule(name.removesuffix(".weight")) for name in prunable(model)}
    hooks = [layer.register_forward_hook(partial(count, name)) for name, layer in layers.items()]
    try:
        with torch.no_grad():
            model(weights, x)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: uses.get(name, 1.0) for name in layers}
