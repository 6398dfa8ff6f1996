"""HeteroFL, FjORD and FedRolex against plain loops: narrow modules, and indices of channels that are written out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.learning.test_batch_statistics import reference as measure_statistics
from tests.methods import tiny_federation as tiny
from undergrowth.core import Model
from undergrowth.methods import FedRolex, FjORD, HeteroFL

WIDTHS = (8, 6)  # channels of the two hidden layers
# Channels a, b and c have: 6, 4 and 2 of 8, and 5, 3 and 2 of 6, rounded up. No slice is the whole model.
RATIOS = {"a": 0.75, "b": 0.5, "c": 0.2}
# For each dimension of a tensor, the hidden layer whose channels it has; None: inputs or classes.
AXES: dict[str, tuple[int | None, ...]] = {
    "0.weight": (0, None), "0.bias": (0,), "1.weight": (0,), "1.bias": (0,),
    "3.weight": (1, 0), "3.bias": (1,), "5.weight": (None, 1), "5.bias": (None,),
}  # fmt: skip
Kept = Sequence[Sequence[int]]  # the channels of each hidden layer that are in a slice


def build(first: int = WIDTHS[0], second: int = WIDTHS[1]) -> nn.Module:
    """A channel that is left out would leave 0.5 behind a sigmoid, and so a gradient for the weights that read it."""
    return nn.Sequential(
        nn.Linear(4, first), nn.BatchNorm1d(first), nn.Sigmoid(),
        nn.Linear(first, second), nn.Sigmoid(), nn.Linear(second, 3),
    ).double()  # fmt: skip


TASK = replace(tiny.TASK, model=Model(build), train=replace(tiny.TRAIN, weight_decay=0.05))


def window(ratio: float, offset: int = 0) -> Kept:
    """The channels offset, offset + 1, …, modulo their number."""
    return [sorted((offset + place) % width for place in range(math.ceil(ratio * width))) for width in WIDTHS]


def index(name: str, kept: Kept) -> tuple[Tensor, ...]:
    """The positions of a slice in a tensor of the whole model."""
    sizes = Model(build).shapes[name]
    lines = [
        torch.arange(size) if layer is None else torch.tensor(kept[layer])
        for size, layer in zip(sizes, AXES[name], strict=True)
    ]
    return torch.meshgrid(lines, indexing="ij")


def train_slice(weights: tiny.Weights, device: str, number: int) -> dict[str, Tensor]:
    """Plain training of a narrow module."""
    module = build(*weights["3.weight"].shape[::-1])
    module.load_state_dict(dict(weights), strict=False)
    shard, optimiser = tiny.SHARDS[device], torch.optim.SGD(module.parameters(), tiny.LR, tiny.MOMENTUM, 0, 0.05)
    orders = tiny.shuffles(tiny.device_context(device, number), len(shard))
    tiny.descend(module, orders, tiny.cross_entropy(shard), optimiser)
    return {name: value.detach() for name, value in module.named_parameters()}


def train_with_dropout(weights: tiny.Weights, device: str, number: int) -> dict[str, Tensor]:
    """Ordered dropout: every step uses the first channels of a ratio that is drawn; all others keep their weights."""
    w, shard = {name: value.clone() for name, value in weights.items()}, tiny.SHARDS[device]
    velocity = {name: torch.zeros_like(value) for name, value in w.items()}
    context = tiny.device_context(device, number)
    ladder = [ratio for ratio in RATIOS.values() if ratio <= RATIOS[device]]
    batches = [rows for order in tiny.shuffles(context, len(shard)) for rows in order.split(tiny.BATCH)]
    draws = torch.randint(len(ladder), (len(batches),), generator=context.generator("width")).tolist()
    for rows, drawn in zip(batches, draws, strict=True):
        first, second = (len(channels) for channels in window(ladder[drawn]))
        p = {name: value.clone().requires_grad_() for name, value in w.items()}
        z = functional.linear(shard.x[rows], p["0.weight"][:first], p["0.bias"][:first])
        z = functional.batch_norm(z, None, None, p["1.weight"][:first], p["1.bias"][:first], training=True).sigmoid()
        z = functional.linear(z, p["3.weight"][:second, :first], p["3.bias"][:second]).sigmoid()
        z = functional.linear(z, p["5.weight"][:, :second], p["5.bias"])
        gradients = torch.autograd.grad(functional.cross_entropy(z, shard.y[rows]), list(p.values()))
        for (name, value), gradient in zip(w.items(), gradients, strict=True):
            inside = tuple(
                slice(None) if layer is None else slice((first, second)[layer]) for layer in AXES[name]
            )  # weight decay and steps act here; elsewhere the gradient is 0 and the velocity fades
            gradient[inside] += 0.05 * value[inside]
            velocity[name] = tiny.MOMENTUM * velocity[name] + gradient
            value[inside] -= tiny.LR * velocity[name][inside]
    return w


def average(model: tiny.Weights, trained: Mapping[str, tuple[Kept, tiny.Weights]]) -> dict[str, Tensor]:
    """Every coordinate: Σ n_k·w_k / Σ n_k over the devices whose slice has it; one in no slice keeps its value."""
    after = dict(model)
    for name in AXES:
        total, count = torch.zeros_like(model[name]), torch.zeros_like(model[name])
        for device, (kept, weights) in trained.items():
            total[index(name, kept)] += len(tiny.SHARDS[device]) * weights[name]
            count[index(name, kept)] += len(tiny.SHARDS[device])
        after[name] = torch.where(count > 0, total / count.clamp_min(1), model[name])
    return after


@pytest.mark.parametrize("kind", [HeteroFL, FjORD, FedRolex])
def test_a_run_is_what_the_formulas_say(kind: type[HeteroFL | FjORD | FedRolex]) -> None:
    """Devices of equal speed are assigned the ratios in turn. Each round ends with the statistics of the new model."""
    model = tiny.initial(TASK.model)
    train_device = train_with_dropout if kind is FjORD else train_slice
    for number in range(3):
        trained = {}
        for device, ratio in RATIOS.items():
            kept = window(ratio, number if kind is FedRolex else 0)
            cut = {name: model[name][index(name, kept)] for name in AXES}
            trained[device] = (kept, train_device(cut, device, number))
        model = average(model, trained)
        model["1.num_batches_tracked"] = model["1.num_batches_tracked"] + 8  # the steps of b, the most of all
        model |= measure_statistics(TASK, model, tiny.SHARDS, tiny.SEED, number, turn=number + 1)
    tiny.assert_same(tiny.simulate(kind(ratios=tuple(RATIOS.values())), 3, TASK)[0]["model"], model)
