"""Masks of single weights: how they travel, and which weights are left by the importance per unit of time."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from undergrowth.core import Model, Weights

Masks = Mapping[str, Tensor]


def prunable(model: Model) -> list[str]:
    """Names of the trained weights of convolutions and linear layers."""
    kinds = (nn.Conv1d, nn.Conv2d, nn.Linear)
    names = [f"{name}.weight" for name, layer in model.module.named_modules() if isinstance(layer, kinds)]
    return [name for name in names if name in model.parameters]


def pack(mask: Tensor) -> Tensor:
    """A mask as bytes, eight weights in each."""
    bits = nn.functional.pad(mask.flatten().to(torch.uint8), (0, -mask.numel() % 8)).reshape(-1, 8)
    return (bits << torch.arange(8, dtype=torch.uint8, device=bits.device)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, shape: torch.Size) -> Tensor:
    """The mask of this shape in bytes from `pack`."""
    bits = packed[:, None] >> torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (bits & 1).bool().flatten()[: shape.numel()].reshape(shape)


def take_left(weights: Weights, masks: Masks) -> dict[str, Tensor]:
    """The weights; those of a tensor that has a mask are a row of the ones that are left."""
    return {name: value[masks[name]] if name in masks else value for name, value in weights.items()}


def put_back(weights: Weights, masks: Masks) -> dict[str, Tensor]:
    """The tensors of full size of weights from `take_left`, with zeros in place of removed weights."""
    return {
        name: value.new_zeros(masks[name].shape).masked_scatter(masks[name], value) if name in masks else value
        for name, value in weights.items()
    }


def largest_weights(weights: Weights, names: list[str], ratio: float) -> dict[str, Tensor]:
    """Masks of the 1 − `ratio` of the weights with the largest magnitudes in all tensors `names` together."""
    return _split(_largest(_row(weights, names).abs(), ratio), weights, names)


def most_important_weights(
    weights: Weights, gradients: Weights, uses: Mapping[str, float], ratio: float, overhead: float
) -> dict[str, Tensor]:
    """Masks of the weights that maximise the importance per unit of time, see the method; by name as in `gradients`.

    In float64 on the CPU, so that the choice does not depend on the torch device.
    """
    names = list(gradients)
    importance = _row(gradients, names).square()
    times = torch.cat([torch.full((gradients[name].numel(),), uses[name], dtype=torch.float64) for name in names])
    left = _largest(_row(weights, names).abs(), ratio)
    others = (~left).nonzero()[:, 0]
    order = others[(importance[others] / times[others]).sort(descending=True, stable=True).indices]
    added, taken = importance[order], times[order]
    # Importance and time of M before each weight in this order would join.
    before = importance[left].sum() + added.cumsum(0) - added
    time = overhead * times.sum() + times[left].sum() + taken.cumsum(0) - taken
    fails = (added * time < before * taken).nonzero()
    left[order[: int(fails[0]) if len(fails) else len(order)]] = True
    return _split(left, weights, names)


def _row(tensors: Weights, names: list[str]) -> Tensor:
    return torch.cat([tensors[name].detach().to("cpu", torch.float64).flatten() for name in names])


def _largest(magnitudes: Tensor, ratio: float) -> Tensor:
    count = len(magnitudes) - int(ratio * len(magnitudes))
    order = magnitudes.sort(descending=True, stable=True).indices
    return torch.zeros(len(magnitudes), dtype=torch.bool).index_fill(0, order[:count], True)


def _split(row: Tensor, like: Weights, names: list[str]) -> dict[str, Tensor]:
    parts = row.split([like[name].numel() for name in names])
    return {name: part.reshape(like[name].shape).to(like[name].device) for name, part in zip(names, parts, strict=True)}
