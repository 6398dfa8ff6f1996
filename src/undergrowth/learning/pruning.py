"""Structured pruning: removes the channels with the smallest L1 norms, so that layers are physically smaller.

Which channels belong together, across residual sums and the layers that read them, is found as for slices by width
(`width`): by the graph of the module or, for modules that it does not understand, by torch-pruning's dependency graph.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from undergrowth.core import Model, Weights
from undergrowth.learning.width import Axis, Widths, widths_of

MAX_PRUNED = 0.95  # fraction of the channels that is removed at most

# The first convolutions are small and compute much. With a quarter of them whole, VGG-16 has 0.472 M parameters at 90 %
# and 16.62 M at 30 %, which are the sizes that Desai (REFT, 2023) prints; see docs/decisions/0045.
WHOLE = 0.25


def pruned_fraction(flops: float, f_lambda: float) -> float:
    """P = 1 − F/F_λ, between 0 and 0.95: the fraction of the channels that a device of speed F goes without."""
    return min(MAX_PRUNED, max(0.0, 1 - flops / f_lambda))


def utilisation(fraction: float, flops: float, f_lambda: float) -> float:
    """U = (1 − P)·F_λ / F, at most 1: how much of a device's speed a model uses that is pruned by `fraction`.

    With P of the slowest device for all devices it is F_static / F (eq. 5.1 of REFT).
    """
    return min(1.0, (1 - fraction) * f_lambda / flops)


def prune(model: Model, weights: Weights, fraction: float) -> Weights:
    """The weights without `fraction` of the channels of every layer; with a fraction of 0 the weights themselves."""
    if fraction == 0:
        return weights
    return widths_of(model).take(weights, strongest_channels(model, weights, fraction))


def strongest_channels(model: Model, weights: Weights, fraction: float, whole: float = WHOLE) -> list[Tensor]:
    """For each set of channels of the model, the positions of the channels that stay.

    Those are 1 − `fraction` of them, rounded up, with the largest L1 norms: the sum over the filters that compute the
    channel, in all layers that share it. The channels of the first `whole` of the convolutions all stay.
    """
    widths = widths_of(model)
    kept = []
    first = _first_convolutions(widths, whole)
    for number, channels in enumerate(widths.channels):
        axes = [(name, axis) for name, each in widths.axes.items() for axis in each if axis.channels == number]
        # The channels of a layer's output are the first dimension of its weights.
        computing = [(name, axis) for name, axis in axes if axis.dimension == 0 and len(widths.shapes[name]) > 1]
        if any(name in first for name, _ in computing):
            kept.append(torch.arange(channels.count))
            continue
        norms = sum(_norms(weights[name], axis, channels.count) for name, axis in sorted(computing or axes))
        assert isinstance(norms, Tensor)
        grains = norms.reshape(-1, channels.grain).sum(1)
        order = grains.sort(descending=True, stable=True).indices[: channels.kept(1 - fraction) // channels.grain]
        positions = order.sort().values[:, None] * channels.grain + torch.arange(channels.grain, device=order.device)
        kept.append(positions.flatten())
    return kept


def _first_convolutions(widths: Widths, whole: float) -> set[str]:
    convolutions = [name for name, shape in widths.shapes.items() if len(shape) > 2]
    return set(convolutions[: int(whole * len(convolutions))])


def _norms(weight: Tensor, axis: Axis, count: int) -> Tensor:
    """The L1 norm of each channel. In float64 on the CPU, so that the choice does not depend on the torch device."""
    rows = weight.detach().to("cpu", torch.float64).abs().movedim(axis.dimension, 0)
    return rows.reshape(count, -1).sum(1)


def pruned_module(model: Model, weights: Weights) -> nn.Module:
    """A plain module with these weights, whose layers have their smaller sizes; in evaluation mode."""
    module = copy.deepcopy(model.module)
    for name, value in weights.items():
        owner, _, last = name.rpartition(".")
        layer = module.get_submodule(owner)
        old = layer._parameters.get(last)
        if old is not None:
            new = nn.Parameter(value.detach().clone())
            for place in (each._parameters for each in module.modules()):
                place.update({key: new for key, found in place.items() if found is old})  # a tied weight has several
        else:
            layer._buffers[last] = value.detach().clone()
    for name, (attribute, size) in widths_of(model).grouped.items():
        layer = module.get_submodule(name)
        setattr(layer, attribute, len(layer.get_parameter("weight")) // size)
    for layer in module.modules():
        _set_sizes(layer)
    return module.eval()


def pruned_copy(module: nn.Module, fraction: float) -> nn.Module:
    """The module without `fraction` of the channels of its layers."""
    model = Model(lambda: module)
    weights = {name: value.detach() for name, value in module.state_dict().items() if name in model.shapes}
    return pruned_module(model, prune(model, weights, fraction))


_SIZES: Sequence[tuple[type[nn.Module], Sequence[tuple[str, int]]]] = (
    (nn.Linear, (("out_features", 0), ("in_features", 1))),
    (nn.modules.batchnorm._BatchNorm, (("num_features", 0),)),
    (nn.GroupNorm, (("num_channels", 0),)),
    (nn.Embedding, (("embedding_dim", 1),)),
)


def _set_sizes(layer: nn.Module) -> None:
    """Sets the attributes of a layer that repeat the shape of its weights."""
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor):
        return
    for kind, sizes in _SIZES:
        if isinstance(layer, kind):
            for attribute, dimension in sizes:
                setattr(layer, attribute, weight.shape[dimension])
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        layer.out_channels, layer.in_channels = weight.shape[0], weight.shape[1] * layer.groups
