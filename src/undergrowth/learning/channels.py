"""Channels: finds out from a module's graph which dimensions of its tensors hold the same channels."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from undergrowth.core import InputError

if TYPE_CHECKING:
    from torch.fx import Node

# Layers that work on each channel separately.
_KEEPING = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Hardsigmoid, nn.Sigmoid, nn.Tanh, nn.Identity,
    nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d,
)  # fmt: skip
_KEEPING_FUNCTIONS = {
    F.relu, torch.relu, F.gelu, F.silu, F.hardswish, F.hardsigmoid, torch.sigmoid, torch.tanh, F.interpolate,
}  # fmt: skip
_JOINING = {operator.add, operator.iadd, torch.add, operator.mul, torch.mul}
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


@dataclass(eq=False)
class Set:
    """Channels that layers share. A set that turned out to equal another one points to it."""

    count: int  # 0: the channels of the input, or of a concatenation
    grain: int = 1
    sliced: bool = True
    same: Set | None = None

    def found(self) -> Set:
        return self if self.same is None else self.same.found()


class Value(NamedTuple):
    """The value on an edge of the graph: its channels, and whether it was flattened."""

    channels: Set
    flat: bool


@dataclass
class Found:
    """Where the channels of a module are, as far as they are found."""

    axes: dict[str, list[tuple[int, Set, int]]] = field(default_factory=dict)  # tensor → dimension, channels, block
    grouped: dict[str, tuple[str, int]] = field(default_factory=dict)  # layer → its attribute, channels per group

    def along(self, name: str, dimension: int, channels: Set, size: int) -> None:
        """Record that `channels` are laid out along a dimension with `size` entries."""
        if not channels.count:
            return
        block, rest = divmod(size, channels.count)
        if rest:
            raise cannot(f"'{name}' has {size} entries for {channels.count} channels")
        self.axes.setdefault(name, []).append((dimension, channels, block))


def find_channels(module: nn.Module, frozen: Collection[str]) -> Found:
    """The sets of channels of a module; an InputError if it has a layer or operation that is not supported.

    frozen: names of tensors that are not sliced.
    """
    from torch.fx import Tracer
    from torch.fx.proxy import TraceError

    class LayerTracer(Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            # Also those with a padding of their own, which depends on the size of the image.
            is_convolution = isinstance(m, nn.Conv1d | nn.Conv2d) and set(m.state_dict()) <= {"weight", "bias"}
            return is_convolution or super().is_leaf_module(m, module_qualified_name)

    try:
        graph = LayerTracer().trace(module)
    except (TraceError, TypeError, RuntimeError) as error:
        raise cannot(f"{type(module).__name__} has control flow that depends on values ({error})") from None
    found = Found()
    values: dict[Node, Value] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = Value(Set(0, sliced=False), False)
            continue
        inputs = [values[each] for each in node.all_input_nodes]
        if node.op == "output":
            for value in inputs:
                value.channels.found().sliced = False  # the classes
        elif node.op == "call_module" and len(inputs) == 1:
            values[node] = _layer(found, node.target, module.get_submodule(node.target), inputs[0])
        else:
            values[node] = _operation(node, inputs)
    for name in found.axes.keys() & set(frozen):
        for _, channels, _ in found.axes[name]:
            channels.found().sliced = False  # devices share frozen tensors, so these have their full size
    found.axes = {
        name: kept
        for name, axes in found.axes.items()
        if (kept := [(place, one.found(), block) for place, one, block in axes if one.found().sliced])
    }
    return found


def _layer(found: Found, name: str, layer: nn.Module, value: Value) -> Value:
    """The output of a layer; records along which dimensions of its tensors the channels are."""
    if isinstance(layer, _KEEPING):
        return value
    if isinstance(layer, nn.Flatten) and layer.start_dim == 1 and layer.end_dim == -1:
        return Value(value.channels, True)
    if f"{name}.weight" in found.axes:
        raise cannot(f"the layer '{name}' is used twice")
    if isinstance(layer, nn.Linear):
        if value.channels.count and not value.flat:
            raise cannot(f"the linear layer '{name}' works on maps that are not flat")
        return Value(_dense(found, name, value.channels, layer.in_features, layer.out_features), True)
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        return _convolution(found, name, layer, value)
    if isinstance(layer, _NORMS):
        for each in ("weight", "bias", "running_mean", "running_var"):
            found.along(f"{name}.{each}", 0, value.channels, layer.num_features)
        return value
    if isinstance(layer, nn.GroupNorm) and layer.affine and layer.num_channels == value.channels.count:
        channels, size = value.channels.found(), layer.num_channels // layer.num_groups
        channels.grain = math.lcm(channels.grain, size)
        found.grouped[name] = ("num_groups", size)
        return _each_channel(found, name, value, layer.num_channels)
    raise _unknown(name, layer)


def _convolution(found: Found, name: str, layer: nn.Conv1d | nn.Conv2d, value: Value) -> Value:
    if layer.groups == 1:
        return Value(_dense(found, name, value.channels, layer.in_channels, layer.out_channels), False)
    if layer.groups == layer.in_channels == layer.out_channels:  # depthwise
        found.grouped[name] = ("groups", 1)
        return _each_channel(found, name, value, layer.out_channels)
    raise _unknown(name, layer)


def _dense(found: Found, name: str, channels: Set, inputs: int, outputs: int) -> Set:
    """The new channels of a layer in which every output reads every input."""
    made = Set(outputs)
    found.along(f"{name}.weight", 0, made, outputs)
    found.along(f"{name}.weight", 1, channels, inputs)
    found.along(f"{name}.bias", 0, made, outputs)
    return made


def _each_channel(found: Found, name: str, value: Value, count: int) -> Value:
    """The output of a layer with one weight and one bias per channel."""
    for each in ("weight", "bias"):
        found.along(f"{name}.{each}", 0, value.channels, count)
    return value


def _unknown(name: str, layer: nn.Module) -> InputError:
    return cannot(f"the layer '{name}' is a {type(layer).__name__}, whose channels are not known")


def _operation(node: Node, inputs: list[Value]) -> Value:
    if node.op == "call_function" and node.target in _KEEPING_FUNCTIONS:
        return inputs[0]
    if (node.op == "call_method" and node.target == "relu") or (node.target in _JOINING and len(inputs) == 1):
        return inputs[0]  # the other operand is a number
    flattens = node.target is torch.flatten or (node.op == "call_method" and node.target == "flatten")
    if flattens and (*node.args[1:], *node.kwargs.values()) == (1,):
        return Value(inputs[0].channels, True)
    if node.op == "call_function" and node.target in _JOINING:
        return Value(_tied(*(each.channels for each in inputs)), inputs[0].flat)
    if node.target is torch.cat and (*node.args[1:], *node.kwargs.values()) == (1,):
        for each in inputs:
            each.channels.found().sliced = False  # each is only a part of the channels that the next layer reads
        return Value(Set(0, sliced=False), inputs[0].flat)
    raise cannot(f"it computes '{node.name}', which may mix channels" if inputs else f"it reads '{node.target}'")


def _tied(one: Set, other: Set) -> Set:
    """One set for two that are added or multiplied channel by channel."""
    one, other = one.found(), other.found()
    if one is not other:
        if one.count and other.count and one.count != other.count:
            raise cannot(f"it adds {one.count} channels to {other.count}")
        one.grain, one.sliced = math.lcm(one.grain, other.grain), one.sliced and other.sliced
        one.count = one.count or other.count
        other.same = one
    return one


def cannot(reason: Any) -> InputError:
    return InputError(
        f"model: it cannot be sliced by width: {reason}; choose mlp, cnn, wrn-D-K, resnet-8, resnet-18, resnet-34, "
        "vgg-16, squeezenet, mobilenetv3-small or an efficientnet, or a model of your own of convolutions, linear "
        "layers, normalisation, pooling and sums"
    )
