"""Sparse adapters, and low-rank ones made from them: the two stages of SLoRA.

A sparse adapter changes a fixed random part of a layer's weight: y = (W + S)·x + b, with S zero outside the mask. Only
the values inside are trained and sent; a seed, which everybody knows, stands for the mask.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from undergrowth.core import Model, Weights
from undergrowth.core.binding import BoundModule
from undergrowth.learning.adapters import adapted_layers, set_layer

SPARSE = "sparse"  # the name of the values in their layer


class SparseLinear(nn.Module):
    """A frozen linear layer whose weight is trained at some positions."""

    positions: Tensor

    def __init__(self, base: nn.Linear, positions: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = base.weight, base.bias
        self.sparse = nn.Parameter(base.weight.new_zeros(len(positions)))
        self.register_buffer("positions", positions.to(base.weight.device), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight + spread(self.sparse, self.positions, self.weight.shape), self.bias)


def spread(values: Tensor, positions: Tensor, shape: torch.Size) -> Tensor:
    """A matrix of zeros with `values` at `positions`; of several devices' values, a matrix for each device."""
    zeros = values.new_zeros(*values.shape[:-1], shape.numel())
    matrix: Tensor = zeros.scatter(-1, positions.expand_as(values), values).unflatten(-1, shape)
    return matrix


@dataclass(frozen=True)
class SparseBuilder:
    """Builds a module with low-rank adapters and puts sparse ones in their places."""

    build: Callable[[], nn.Module]
    density: float
    seed: int

    def __call__(self) -> nn.Module:
        return self.change(self.build())

    def change(self, module: nn.Module) -> nn.Module:
        """The same module with sparse adapters. The values of a mask are drawn layer by layer."""
        generator = torch.Generator().manual_seed(self.seed)
        for name, layer in adapted_layers(module).items():
            size = layer.base.weight.numel()
            chosen = torch.randperm(size, generator=generator)[: max(1, round(self.density * size))]
            set_layer(module, name, SparseLinear(layer.base, chosen.sort().values))
        return module


_known: WeakKeyDictionary[Model, dict[tuple[float, int], Model]] = WeakKeyDictionary()


def sparse_model(model: Model, density: float, seed: int) -> Model:
    """The model with sparse adapters in place of its low-rank ones. Both have the same frozen tensors."""
    views = _known.setdefault(model, {})
    if (density, seed) not in views:
        shared = {id(tensor): tensor for tensor in chain(model.module.parameters(), model.module.buffers())}
        builder = SparseBuilder(model.build, density, seed)
        bound = BoundModule(builder.change(copy.deepcopy(model.module, shared)), model.binding.levels)
        views[density, seed] = Model(builder, model.torch_device, model.mixed, model.not_alone, bound)
    return views[density, seed]


def low_rank(model: Model, sparse: Model, weights: Weights, initial: Weights) -> dict[str, Tensor]:
    """The weights of `model` that are nearest to those of the model with sparse adapters.

    The adapters are the first singular vectors of each change S = U·diag(s)·Vᵀ:

        B = U_r·√(s_r / scale),  A = √(s_r / scale)·V_rᵀ,  so that scale·B·A is the best approximation of S of rank r

    If the rank is higher than that of S, the rest of A is that of `initial` and the rest of B is zero: with zeros in
    both, neither would have a gradient.
    """
    found = {name: weights.get(name, value) for name, value in initial.items()}
    layers = dict(sparse.module.named_modules())
    for name, layer in adapted_layers(model.module).items():
        positions = layers[name].positions
        change = spread(weights[f"{name}.{SPARSE}"], positions, layer.base.weight.shape)
        left, singular, right = torch.linalg.svd(change.double(), full_matrices=False)
        negligible = singular[0] * max(change.shape) * torch.finfo(singular.dtype).eps  # zero but for rounding
        rank = min(len(initial[layer.first]), int((singular > negligible).sum()))
        root = (singular[:rank] / layer.scale).sqrt()
        first, second = initial[layer.first].clone(), torch.zeros_like(initial[layer.second])
        first[:rank] = root.unsqueeze(1) * right[:rank]
        second[:, :rank] = left[:, :rank] * root
        found |= {layer.first: first, layer.second: second}
    return found
