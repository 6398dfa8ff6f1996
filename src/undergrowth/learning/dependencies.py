"""Dependencies: finds the channels of a module with torch-pruning, for modules that `channels` does not understand.

torch-pruning follows the channels through the graph of a backward pass, so it knows functions such as max pooling,
reshaping and means. Channels keep their full width if they pass a layer whose width cannot change by its weights alone
(LayerNorm, attention, recurrent layers), or if they are only a part of a dimension (concatenation).
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor, nn

from undergrowth.core import InputError
from undergrowth.learning.channels import Found, Set, cannot

WITH_FILTERS = (nn.Conv1d, nn.Conv2d, nn.Linear, nn.Embedding)
_TENSORS = ("weight", "bias", "running_mean", "running_var")
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm)


def find_dependencies(module: nn.Module, x: Tensor, frozen: Collection[str], problem: InputError) -> Found:
    """The sets of channels of a module, from a pass of one input `x`. `problem`: why `channels` failed.

    frozen: names of tensors that are not sliced.
    """
    try:
        import torch_pruning
    except ImportError:
        hint = "pip install 'undergrowth[prune]' adds torch-pruning, which understands more models"
        raise InputError(f"{problem}; {hint}") from None
    # Only the graph matters, not the values: the module may be on the meta device.
    traced = copy.deepcopy(module).to_empty(device="cpu").eval().requires_grad_(True)
    names = {layer: name for name, layer in traced.named_modules()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = torch_pruning.DependencyGraph().build_dependency(traced, example_inputs=x, verbose=False)
            groups = list(graph.get_all_groups(root_module_types=list(WITH_FILTERS)))
    except Exception as error:  # the library raises many kinds for graphs that it does not know
        raise cannot(f"torch-pruning cannot follow its channels ({type(error).__name__}: {error})") from None
    found = Found()
    for group in groups:
        channels = Set(len(set(group[0].root_idxs)))
        for item in group:
            layer, outgoing = item.dep.target.module, graph.is_out_channel_pruning_fn(item.dep.handler)
            if outgoing and not item.dep.target.outputs:
                channels.sliced = False  # the classes
            if layer in names and not _add(found, names[layer], layer, outgoing, item, channels):
                channels.sliced = False
            if any(f"{names.get(layer)}.{each}" in frozen for each in _TENSORS):
                channels.sliced = False
    found.axes = {
        name: kept for name, axes in found.axes.items() if (kept := [axis for axis in axes if axis[1].sliced])
    }
    if not found.axes:
        raise problem
    return found


def _add(found: Found, name: str, layer: nn.Module, outgoing: bool, item: Any, channels: Set) -> bool:
    """Records the dimensions of a layer along which the channels are; False if the layer keeps its width."""
    tensors = list(_dimensions(layer, outgoing))
    weight = getattr(layer, "weight", None)  # not `get_parameter`: a layer may compute its weight from other tensors
    size = weight.shape[tensors[0][1]] if tensors and isinstance(weight, Tensor) else 0
    block = size // channels.count
    if not tensors or sorted(item.idxs) != list(range(size)) or size % channels.count:
        return False
    if any(position // block != root for position, root in zip(item.idxs, item.root_idxs, strict=True)):
        return False
    if isinstance(layer, nn.GroupNorm):
        channels.grain = math.lcm(channels.grain, layer.num_channels // layer.num_groups)
        found.grouped[name] = ("num_groups", layer.num_channels // layer.num_groups)
    if isinstance(layer, nn.Conv1d | nn.Conv2d) and layer.groups > 1:
        if not layer.groups == layer.in_channels == layer.out_channels:
            return False
        found.grouped[name] = ("groups", 1)
    for tensor, dimension in tensors:
        found.along(f"{name}.{tensor}", dimension, channels, size)
    return True


def _dimensions(layer: nn.Module, outgoing: bool) -> Iterator[tuple[str, int]]:
    """The tensors of a layer that have its outgoing or incoming channels, and the dimension of each."""
    if isinstance(layer, _NORMS) and layer.weight is not None:
        yield from ((name, 0) for name in _TENSORS)
    elif isinstance(layer, nn.Embedding) and outgoing:
        yield "weight", 1
    elif isinstance(layer, WITH_FILTERS) and outgoing:
        yield from (("weight", 0), ("bias", 0))
    elif isinstance(layer, WITH_FILTERS):
        yield "weight", 1
