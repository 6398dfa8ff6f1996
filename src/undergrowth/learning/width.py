"""Width: which channels of a model belong together, and slices of the model that have only some of them.

A channel is an output of one layer, an input of every layer that reads it and, across a residual sum, a channel of
other layers too: a slice keeps it everywhere or nowhere. `channels` finds out from the module's graph, once per model,
which channels belong together. The channels of the input and the classes are never sliced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from undergrowth.core import InputError, Model, Output, Weights
from undergrowth.core.samplers import ceil_of
from undergrowth.learning.channels import Found, cannot, find_channels
from undergrowth.learning.dependencies import WITH_FILTERS, find_dependencies
from undergrowth.learning.features import ModelView

_KNOWN: WeakKeyDictionary[Model, Widths] = WeakKeyDictionary()


class Axis(NamedTuple):
    """A dimension of a tensor: the set of channels along it, and the number of entries per channel."""

    dimension: int
    channels: int  # index into `Widths.channels`
    block: int  # above 1 after flattening: the pixels of one channel are adjacent


@dataclass(frozen=True)
class Channels:
    """A set of channels that layers share. `grain`: channels are kept in units of this size (groups of a GroupNorm)."""

    count: int
    grain: int

    def kept(self, ratio: float) -> int:
        """The number of channels in a slice: this fraction of them, rounded up."""
        # round() first, so that float error does not make 0.1 · 30 a little more than 3.
        return self.grain * max(1, ceil_of(ratio * self.count / self.grain))

    def window(self, ratio: float, offset: int) -> Tensor:
        """The channels of a slice: a window that starts `offset` grains after the first one and wraps around."""
        grains = torch.arange(self.kept(ratio) // self.grain).add(offset).remainder(self.count // self.grain)
        # Sorted, so that a window over all channels is the unchanged model.
        return _blocks(grains.sort().values, self.grain)


@dataclass(frozen=True)
class Widths:
    """How the tensors of one model are sliced. A slice is identified by its ratio and its offset."""

    shapes: Mapping[str, torch.Size]
    channels: tuple[Channels, ...]
    axes: Mapping[str, tuple[Axis, ...]]  # of each sliced tensor
    grouped: Mapping[str, tuple[str, int]]  # layer that groups channels → its attribute, channels per group

    def shape(self, name: str, ratio: float) -> torch.Size:
        """The shape of a tensor of the model in a slice."""
        sizes = list(self.shapes[name])
        for axis in self.axes.get(name, ()):
            sizes[axis.dimension] = self.channels[axis.channels].kept(ratio) * axis.block
        return torch.Size(sizes)

    def fraction(self, ratio: float) -> float:
        """The number of weights in a slice divided by that of the model."""
        whole, kept = (sum(self.shape(name, part).numel() for name in self.shapes) for part in (1.0, ratio))
        return kept / whole

    def cut(self, weights: Weights, ratio: float, offset: int = 0) -> Weights:
        """The slice of these weights; with a ratio of 1 the weights themselves."""
        if ratio == 1:
            return weights
        return self.take(weights, [channels.window(ratio, offset) for channels in self.channels])

    def take(self, weights: Weights, kept: Sequence[Tensor]) -> dict[str, Tensor]:
        """The weights with some channels only. `kept`: for each set of channels, the positions of those that stay."""
        sliced = dict(weights)
        for name in weights.keys() & self.axes.keys():
            for axis in self.axes[name]:
                index = _blocks(kept[axis.channels], axis.block).to(sliced[name].device)
                sliced[name] = sliced[name].index_select(axis.dimension, index)
        return sliced

    def spread(self, cut: Weights, ratio: float, offset: int = 0) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The tensors of a slice at their positions in tensors of full size, and masks of these positions."""
        return self.place(cut, [channels.window(ratio, offset) for channels in self.channels])

    def place(self, cut: Weights, kept: Sequence[Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What `take` took, at its positions in tensors of full size, and masks of these positions."""
        values: dict[str, Tensor] = {}
        masks: dict[str, Tensor] = {}
        for name, value in cut.items():
            positions: list[Tensor] = [torch.arange(size, device=value.device) for size in self.shapes[name][:2]]
            for axis in self.axes.get(name, ()):
                positions[axis.dimension] = _blocks(kept[axis.channels], axis.block).to(value.device)
            at = tuple(torch.meshgrid(positions, indexing="ij")) if positions else ()
            values[name] = value.new_zeros(self.shapes[name]).index_put(at, value) if at else value
            masks[name] = torch.zeros(self.shapes[name], dtype=torch.bool, device=value.device)
            masks[name][at or ...] = True
        return values, masks

    def masks(self, weights: Weights, kept: Tensor) -> dict[str, Tensor]:
        """Masks of the first channels of each set in the sliced tensors of `weights`.

        kept: the number of channels of each set, with shape (..., sets). Leading dimensions come first in the masks
        too, as they do in the weights of several clients that an engine computes at once.
        """
        masks: dict[str, Tensor] = {}
        for name in weights.keys() & self.axes.keys():
            dimensions = len(self.shapes[name])
            for axis in self.axes[name]:
                size = weights[name].shape[axis.dimension - dimensions]
                first = kept[..., axis.channels, None] * axis.block
                line = torch.arange(size, device=kept.device) < first
                ones = [size if dimension == axis.dimension else 1 for dimension in range(dimensions)]
                mask = line.reshape(*kept.shape[:-1], *ones)
                masks[name] = masks[name] & mask if name in masks else mask
        return masks

    def scale_up(self, weights: Weights) -> Weights:
        """The weights of a slice, with those of hidden layers divided by the part of their outputs in the slice."""
        scaled = dict(weights)
        for name, axes in self.axes.items():
            shape = self.shapes[name]
            # Matrices and filters: layers that normalise have vectors only.
            if len(shape) < 2 or not any(axis.dimension == 0 for axis in axes):
                continue
            # Indexed from the back: in a stack of clients the client is the first dimension.
            factor = shape[0] / weights[name].shape[-len(shape)]
            bias = f"{name.removesuffix('weight')}bias"
            scaled.update({each: weights[each] * factor for each in (name, bias) if each in weights})
        return scaled

    @contextmanager
    def set_groups(self, model: Model, weights: Weights) -> Iterator[None]:
        """Run the block with the number of groups of each layer set to the one that these weights have."""
        layers = [(model.module.get_submodule(name), *rest) for name, rest in self.grouped.items()]
        before = [getattr(layer, attribute) for layer, attribute, _ in layers]
        try:
            for name, (layer, attribute, size) in zip(self.grouped, layers, strict=True):
                weight = f"{name}.weight"
                # Indexed from the back: in a stack of clients the client is the first dimension.
                setattr(layer, attribute, weights[weight].shape[-len(self.shapes[weight])] // size)
            yield
        finally:
            for (layer, attribute, _), number in zip(layers, before, strict=True):
                setattr(layer, attribute, number)


def widths_of(model: Model) -> Widths:
    """How a model is sliced; an InputError if it cannot be sliced."""
    known = _KNOWN.get(model)
    if known is None:
        try:
            known = _widths(dict(model.shapes), find_channels(model.module, _of_full_size(model)))
        except InputError as problem:
            known = _widths_of_other(model, problem)
        _KNOWN[model] = known
    return known


class SlicedModel(ModelView):
    """A model that also runs with the weights of a slice: layers that group channels adapt their number of groups."""

    widths: Widths

    def __init__(self, whole: Model) -> None:
        super().__init__(whole)
        # Here and not in `run`, because an engine may replace layers while a model runs.
        vars(self)["widths"] = widths_of(whole)

    def run(self, weights: Weights, x: Tensor, **options: Any) -> Output:
        with self.widths.set_groups(self.whole, weights):
            return self.whole.run(weights, x, **options)

    def for_another_thread(self) -> SlicedModel:
        whole = self.whole.for_another_thread()
        _KNOWN[whole] = self.widths  # of the same layers, so it is sliced in the same way
        return type(self)(whole)


def _widths_of_other(model: Model, problem: InputError) -> Widths:
    """How a model is sliced that `channels` does not understand, tried on one input that the model has seen."""
    record = model.binding.levels.record
    if record is None:
        raise problem
    shape, dtype = record.input.shape[1:], record.input.dtype
    found = find_dependencies(model.module, torch.zeros(1, *shape, dtype=dtype), _of_full_size(model), problem)
    widths, x = _widths(dict(model.shapes), found), torch.zeros(2, *shape, dtype=dtype, device=model.torch_device)
    weights = model.initial(0)
    for ratio in (1.0, 0.5, 0.0625):
        cut = widths.cut(weights, ratio)
        try:
            with torch.no_grad(), widths.set_groups(model, cut):
                rows = len(model(cut, x))
        except RuntimeError as error:
            raise cannot(f"a slice of ratio {ratio:g} does not run ({error})") from None
        if rows != len(x):
            raise cannot(f"a slice of ratio {ratio:g} gives {rows} rows for {len(x)} samples; it may name a size")
    return widths


def _of_full_size(model: Model) -> set[str]:
    """Names of tensors that are not sliced.

    Those are frozen tensors, tied weights (their layers may have different channels), and weights that a layer computes
    from others, as with weight normalisation.
    """
    names, uses = set(model.constants), Counter[int]()
    layers = dict(model.module.named_modules())
    for layer in layers.values():
        uses.update(id(value) for value in layer._parameters.values() if value is not None)
    for name, layer in layers.items():
        names.update(f"{name}.{key}" for key, value in layer._parameters.items() if uses[id(value)] > 1)
        if isinstance(layer, WITH_FILTERS):
            computed = {"weight", "bias"} - layer._parameters.keys()
            names.update(f"{name}.{key}" for key in computed if isinstance(getattr(layer, key, None), Tensor))
    return names


def _widths(shapes: Mapping[str, torch.Size], found: Found) -> Widths:
    sets = list(dict.fromkeys(one for axes in found.axes.values() for _, one, _ in axes))
    axes = {
        name: tuple(Axis(dimension, sets.index(one), block) for dimension, one, block in found.axes[name])
        for name in found.axes.keys() & shapes.keys()
    }
    return Widths(shapes, tuple(Channels(one.count, one.grain) for one in sets), axes, found.grouped)


def _blocks(index: Tensor, size: int) -> Tensor:
    """The positions of the entries of these channels, `size` entries per channel."""
    return index if size == 1 else (index[:, None] * size + torch.arange(size, device=index.device)).flatten()
