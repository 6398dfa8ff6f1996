"""Stacked models: the layers of many clients' models computed at once.

The samples of K clients stand in one long batch, client after client, B each. Whatever works on single samples
(activations, pooling, residual sums, reshaping) then needs no change at all; only layers with weights must know that
there are K different ones, and those come through a handful of functions, which this mode takes over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from undergrowth.engines.vector.convolution import convolve


class Stacked(TorchFunctionMode):
    """While entered, layers take weights with the client as their first dimension.

    mask: which samples of the long batch are real, K × B; None: all. The others only fill up the stack.
    """

    def __init__(self, clients: int, mask: Tensor | None) -> None:
        super().__init__()
        self.clients = clients
        self.mask = mask

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        layer = LAYERS.get(function)
        if layer is None:
            return function(*args, **(kwargs or {}))
        return layer(self, *args, **(kwargs or {}))

    def split(self, x: Tensor) -> Tensor:
        """The long batch as K × B × …"""
        return x.reshape(self.clients, -1, *x.shape[1:])


def _shared(*tensors: Tensor | None) -> bool:
    """Whether all clients have the same weights and nobody trains them: then the plain layer will do."""
    return all(t is None or (t.stride(0) == 0 and not t.requires_grad) for t in tensors)


def linear(stack: Stacked, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if _shared(weight, bias):
        return F.linear(x, weight[0], None if bias is None else bias[0])
    rows = x.reshape(stack.clients, -1, x.shape[-1])
    out: Tensor = _Linear.apply(rows, weight, bias)
    return out.reshape(*x.shape[:-1], weight.shape[1])


class _Linear(torch.autograd.Function):
    """rows · weightᵀ + bias for every client; the gradient of the weights lies like the weights.

    Torch's own lies the other way round, and an update of two that lie differently takes five times as long.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        turned = weight.transpose(1, 2)
        return torch.bmm(rows, turned) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, turned)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        to_rows = torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None
        to_weight = torch.bmm(gradient.transpose(1, 2), rows) if ctx.needs_input_grad[1] else None
        to_bias = gradient.sum(1) if ctx.needs_input_grad[2] else None
        return to_rows, to_weight, to_bias


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
    if _shared(weight, bias):
        return F.conv2d(x, weight[0], None if bias is None else bias[0], stride, padding, dilation, groups)
    return convolve(x, weight, bias, stride, padding, dilation, groups)


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
    """Every client has statistics of its own, over its real samples only."""
    innermost = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    maps = x.permute(0, 2, 3, 1) if innermost else x
    # K × B × pixels × C, or K × B × C × pixels: whichever needs no copy
    values = stack.split(maps).flatten(2, 3) if innermost else stack.split(x.reshape(*x.shape[:2], -1))
    pixels = 2 if innermost else 3
    if training or running_mean is None or running_var is None:
        mean, variance, count = _statistics(values, stack.mask, pixels)
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                running_mean.lerp_(mean.detach(), momentum)
                running_var.lerp_(variance.detach() * (count / (count - 1)), momentum)
    else:
        mean, variance = running_mean, running_var
    scale = torch.rsqrt(variance + eps)
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    out = torch.addcmul(shift.unsqueeze(1).unsqueeze(pixels), values, scale.unsqueeze(1).unsqueeze(pixels))
    return out.reshape(maps.shape).permute(0, 3, 1, 2) if innermost else out.reshape(x.shape)


def _statistics(values: Tensor, mask: Tensor | None, pixels: int) -> tuple[Tensor, Tensor, Any]:
    """Mean and variance (of the samples themselves) for every client and channel, and how many values they are of."""
    if mask is None:
        variance, mean = torch.var_mean(values, dim=(1, pixels), correction=0)
        return mean, variance, values.shape[1] * values.shape[pixels]
    real = mask[:, :, None, None]
    count = mask.sum(1, keepdim=True) * values.shape[pixels]  # K × 1
    mean = (values * real).sum((1, pixels)) / count
    away = values - mean.unsqueeze(1).unsqueeze(pixels)
    variance = (away.square() * real).sum((1, pixels)) / count
    return mean, variance, count


def group_norm(
    stack: Stacked, x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    out = stack.split(F.group_norm(x, groups, None, None, eps))
    ones = (1,) * (x.dim() - 2)
    if weight is not None:
        out = out * weight.reshape(stack.clients, 1, -1, *ones)
    if bias is not None:
        out = out + bias.reshape(stack.clients, 1, -1, *ones)
    return out.reshape(x.shape)


def layer_norm(
    stack: Stacked, x: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    out = stack.split(F.layer_norm(x, shape, None, None, eps))
    ones = (1,) * (x.dim() - len(shape))
    if weight is not None:
        out = out * weight.reshape(stack.clients, *ones, *shape)
    if bias is not None:
        out = out + bias.reshape(stack.clients, *ones, *shape)
    return out.reshape(x.shape)


def embedding(
    stack: Stacked,
    x: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    **rest: Any,
) -> Tensor:
    if padding_idx is not None or max_norm is not None or rest.get("sparse"):
        raise NotImplementedError("a stacked embedding has no padding, norm or sparse gradients")
    words = weight.shape[1]
    first = torch.arange(stack.clients, device=x.device).mul_(words)
    own = stack.split(x) + first.reshape(-1, *(1,) * x.dim())
    return F.embedding(own, weight.reshape(-1, weight.shape[2])).flatten(0, 1)


LAYERS: dict[Any, Callable[..., Tensor]] = {
    F.linear: linear,
    F.conv2d: conv2d,
    torch.conv2d: conv2d,
    F.batch_norm: batch_norm,
    F.group_norm: group_norm,
    F.layer_norm: layer_norm,
    F.embedding: embedding,
}
