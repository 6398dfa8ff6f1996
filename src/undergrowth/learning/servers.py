"""AveragingServer: replaces the model by the mean of the uploaded ones, and functions for servers that use the mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from undergrowth.core import Context, Packet, Reducer, Server, State, Task, WeightedMean, Weights, add_upload
from undergrowth.core.names import MODEL, SAMPLES


@dataclass(frozen=True)
class AveragingServer(Server):
    """w ← w + lr·(mean of the uploaded models − w). With lr = 1 the mean itself, bit for bit."""

    lr: float = 1.0
    reducer: Reducer = WeightedMean()
    accepts_partial: bool = False

    def check(self, task: Task, up: Packet) -> str | None:
        return model_mismatch(task, up)

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        if has_no_samples(combined):
            return state
        old = state[MODEL]
        mean = {name: value.to(old[name].dtype) for name, value in combined.tensors.items()}
        updated = {
            # lerp with weight 1 is exactly its end, which `old + (mean - old)` is not.
            name: torch.lerp(old[name], value, self.lr) if name in task.model.parameters else value
            for name, value in mean.items()
        }
        return {**state, MODEL: {**old, **updated}}


def has_no_samples(total: Packet) -> bool:
    """Whether the devices that answered trained on no sample at all. There is no mean then; the model stays."""
    return total.scalars.get(SAMPLES) == 0


def mean_of_models(models: Iterable[tuple[Weights, float]]) -> Packet | None:
    """The mean of models with the samples behind each, as `WeightedMean` combines uploads; None without models."""
    mean: Packet | None = None
    for weights, samples in models:
        mean = add_upload(WeightedMean(), mean, "", Packet(weights, {SAMPLES: samples}))
    return mean


def uploaded_weights(packet: Packet) -> Weights:
    """The model in a packet: the tensors without a prefix."""
    return {name: value for name, value in packet.tensors.items() if "/" not in name}


def model_mismatch(task: Task, up: Packet) -> str | None:
    """The first tensor of an upload that the model does not have or has in another shape, in words; or None."""
    if not up.tensors:
        return "it holds no tensor"
    for name, value in up.tensors.items():
        shape = task.model.shapes.get(name)
        if shape is None:
            return f"'{name}' is not a tensor of the model"
        if value.shape != shape:
            return f"'{name}' has shape {tuple(value.shape)} and the model's is {tuple(shape)}"
    return None


def mean_changes(task: Task, model: Mapping[str, Tensor], total: Packet) -> dict[str, Tensor]:
    """Mean uploaded parameters minus the model's: the pseudo-gradient of a server optimiser, negated."""
    parameters = set(task.model.parameters)
    return {k: v.to(model[k].dtype) - model[k] for k, v in total.tensors.items() if k in parameters}


def with_mean_buffers(task: Task, model: Mapping[str, Tensor], total: Packet) -> dict[str, Tensor]:
    """The model with the mean uploaded buffers. Statistics are averaged and never pass through a server optimiser."""
    means = {name: total.tensors[name] for name in task.model.buffers if name in total.tensors}
    return {**model, **{name: value.to(model[name].dtype) for name, value in means.items()}}
