"""Stacked models: the layers of many clients' models computed at once.

The samples of K clients form one long batch, client after client, B samples each. Operations on single samples
(activations, pooling, residual sums, reshaping) work on it unchanged. Only layers with weights must handle K different
weights; all of these go through a few torch functions, which the mode `Stacked` replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from undergrowth.core.dropout import drop
from undergrowth.engines.vector.convolution import convolve, pool
from undergrowth.engines.vector.gpu_layers import gpu_layers
from undergrowth.engines.vector.normalisation import Normalised, normalise
from undergrowth.engines.vector.recurrence import run_layers
from undergrowth.learning.descent import descend


class Stacked(TorchFunctionMode):
    """While active, layers take weights with the client as their first dimension.

    `mask`: 1 for the real samples of the long batch, 0 for padding, K × B; None: all are real.
    """

    def __init__(self, clients: int, mask: Tensor | None) -> None:
        super().__init__()
        self.clients = clients
        self.mask = mask
        self.normalised: Normalised | None = None  # by the last layer, if it was a normalisation

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        layer = LAYERS.get(function)
        if layer is None:
            return function(*args, **(kwargs or {}))
        return layer(self, *args, **(kwargs or {}))

    def split(self, x: Tensor) -> Tensor:
        """The long batch as K × B × …"""
        return x.reshape(self.clients, -1, *x.shape[1:])

    def each(self, value: Tensor | None, dimensions: int) -> Any:
        """A weight with the client as its first dimension. A frozen one has no such dimension: all share it."""
        return value if value is None or value.dim() > dimensions else value.expand(self.clients, *value.shape)


def _shared(*tensors: Tensor | None) -> bool:
    """Whether all clients have the same weights and none trains them, so that the plain layer can be used."""
    return all(t is None or ((t.stride(0) == 0 or len(t) == 1) and not t.requires_grad) for t in tensors)


def _first(tensor: Tensor | None) -> Tensor | None:
    """The weights of the first client, which stand for those of all."""
    return None if tensor is None else tensor[0]


def linear(stack: Stacked, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    weight, bias = stack.each(weight, 2), stack.each(bias, 1)
    if _shared(weight, bias):
        return F.linear(x, weight[0], _first(bias))
    rows = x.reshape(stack.clients, -1, x.shape[-1])
    out: Tensor = _Linear.apply(rows, weight, bias)
    return out.reshape(*x.shape[:-1], weight.shape[1])


class _Linear(torch.autograd.Function):
    """rows · weightᵀ + bias for every client; the gradient of the weights has the memory layout of the weights.

    Torch's gradient is transposed, and an update of tensors with different layouts takes five times as long.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if torch.is_autocast_enabled(rows.device.type):
            rows, weight = rows.bfloat16(), weight.bfloat16()
            bias = None if bias is None else bias.bfloat16()
        ctx.save_for_backward(rows, weight)
        transposed = weight.transpose(1, 2)
        return torch.bmm(rows, transposed) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, transposed)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        to_rows = torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None
        to_weight = torch.bmm(gradient.transpose(1, 2), rows) if ctx.needs_input_grad[1] else None
        to_bias = gradient.sum(1) if ctx.needs_input_grad[2] else None
        return to_rows, to_weight, to_bias


def descending(stack: Stacked, x: Tensor, weight: Tensor, bias: Tensor, lr: float) -> Tensor:
    rows = x.reshape(stack.clients, -1, x.shape[-1])
    out: Tensor = _Descending.apply(rows, weight, bias, lr)
    return out.reshape(*x.shape[:-1], weight.shape[1])


class _Descending(torch.autograd.Function):
    """The same layer with weights that are updated in the backward pass."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, lr: float) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.lr = lr
        return torch.baddbmm(bias.unsqueeze(1), rows, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (rows, weight), needs_rows = ctx.saved_tensors, ctx.needs_input_grad[0]
        fast = gpu_layers(weight)
        if fast is not None and fast.can_descend(rows, weight):
            to_rows = fast.descend(gradient, rows, weight.detach(), ctx.lr, needs_rows)
        else:
            to_rows = torch.bmm(gradient, weight) if needs_rows else None
            weight.detach().baddbmm_(gradient.transpose(1, 2), rows, alpha=-ctx.lr)
        return to_rows, None, gradient.sum(1), None


def conv2d(
    stack: Stacked,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    weight, bias = stack.each(weight, 4), stack.each(bias, 1)
    if _shared(weight, bias):
        return F.conv2d(x, weight[0], _first(bias), stride, padding, dilation, groups)
    return convolve(x, weight, bias, stride, padding, dilation, groups)


def max_pool2d(
    stack: Stacked,
    x: Tensor,
    size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    if return_indices:
        raise NotImplementedError("stacked max pooling does not return indices")
    return pool(x, size, stride, padding, dilation, ceil_mode)


def batch_norm(
    stack: Stacked,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    mean, variance, weight, bias = (stack.each(value, 1) for value in (running_mean, running_var, weight, bias))
    stack.normalised = normalise(x, stack.clients, stack.mask, mean, variance, weight, bias, training, momentum, eps)
    return stack.normalised.maps


def relu(stack: Stacked, x: Tensor, inplace: bool = False) -> Tensor:
    last, stack.normalised = stack.normalised, None
    if last is not None and last.maps is x and last.rectify is not None and not inplace:
        return last.rectify()
    return F.relu(x, inplace)


def dropped(stack: Stacked, x: Tensor, keys: Tensor, p: float) -> Tensor:
    fast = gpu_layers(x)
    return drop(x, keys, p) if fast is None else fast.drop(x, keys, p)


def group_norm(
    stack: Stacked, x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    weight, bias = stack.each(weight, 1), stack.each(bias, 1)
    if _shared(weight, bias):
        return F.group_norm(x, groups, _first(weight), _first(bias), eps)
    out = stack.split(F.group_norm(x, groups, None, None, eps))
    return _scaled(out, weight, bias, (stack.clients, 1, -1, *(1,) * (x.dim() - 2))).reshape(x.shape)


def layer_norm(
    stack: Stacked, x: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    weight, bias = stack.each(weight, len(shape)), stack.each(bias, len(shape))
    if _shared(weight, bias):
        return F.layer_norm(x, shape, _first(weight), _first(bias), eps)
    out = stack.split(F.layer_norm(x, shape, None, None, eps))
    return _scaled(out, weight, bias, (stack.clients, *(1,) * (x.dim() - len(shape)), *shape)).reshape(x.shape)


def _scaled(out: Tensor, weight: Tensor | None, bias: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """out · weight + bias, with weight and bias in that shape."""
    out = out if weight is None else out * weight.reshape(shape)
    return out if bias is None else out + bias.reshape(shape)


def embedding(
    stack: Stacked,
    x: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    **rest: Any,
) -> Tensor:
    if padding_idx is not None or max_norm is not None or rest.get("sparse"):
        raise NotImplementedError("a stacked embedding supports no padding index, maximum norm or sparse gradients")
    weight = stack.each(weight, 2)
    if _shared(weight):
        return F.embedding(x, weight[0])
    words = weight.shape[1]
    first = torch.arange(stack.clients, device=x.device).mul_(words)
    own = stack.split(x) + first.reshape(-1, *(1,) * x.dim())
    return F.embedding(own, weight.reshape(-1, weight.shape[2])).flatten(0, 1)


def lstm(
    stack: Stacked,
    x: Tensor,
    start: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> tuple[Tensor, ...]:
    per_layer = 4 if biases else 2
    if bidirectional or (dropout and training) or not isinstance(weights, list) or len(weights) != layers * per_layer:
        raise NotImplementedError("a stacked LSTM has one direction, and no dropout, projection or packed sequence")
    own = [stack.each(weight, 2 if place % per_layer < 2 else 1) for place, weight in enumerate(weights)]
    by_layer = [own[first : first + per_layer] for first in range(0, len(own), per_layer)]
    # Clients × positions × samples × inputs, so that the samples of one position are together.
    x = stack.split(x).transpose(1, 2) if batch_first else x.unflatten(1, (stack.clients, -1)).transpose(0, 1)
    states = [state.unflatten(1, (stack.clients, -1)).transpose(0, 1) for state in start]
    outputs, *last = run_layers(x, states, by_layer)
    outputs = outputs.transpose(1, 2).flatten(0, 1) if batch_first else outputs.transpose(0, 1).flatten(1, 2)
    return outputs, *(state.transpose(0, 1).flatten(1, 2) for state in last)


LAYERS: dict[Any, Callable[..., Any]] = {
    F.linear: linear,
    descend: descending,
    F.conv2d: conv2d,
    torch.conv2d: conv2d,
    F.max_pool2d: max_pool2d,
    torch.max_pool2d: max_pool2d,
    F.batch_norm: batch_norm,
    F.relu: relu,
    torch.relu: relu,
    Tensor.relu: relu,
    drop: dropped,
    F.group_norm: group_norm,
    F.layer_norm: layer_norm,
    F.embedding: embedding,
    torch.lstm: lstm,
    torch._cudnn_rnn_flatten_weight: lambda *_: None,  # only for the plain layer on a GPU
}
