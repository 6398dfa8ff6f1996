"""Convolution with weights of their own for every client."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """x: K·B × C × H × W, weight: K × O × C/groups × h × w; gives K·B × O × H' × W'."""
    stride, padding, dilation = _pair(stride), _same(padding, weight), _pair(dilation)
    square = weight.shape[3] == weight.shape[4] and stride[0] == stride[1] and padding[0] == padding[1]
    if x.is_cuda and square and groups == 1 and dilation == (1, 1) and _kernels() is not None:
        return _Product.apply(x, weight, bias, stride[0], padding[0])  # type: ignore[no-any-return]
    return _grouped(x, weight, bias, stride, padding, dilation, groups)


def _grouped(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """One convolution in which every client is a group of channels."""
    clients, channels = len(weight), x.shape[1]
    apart = x.reshape(clients, -1, channels, *x.shape[2:])
    side_by_side = apart.transpose(0, 1).reshape(-1, clients * channels, *x.shape[2:])
    flat = None if bias is None else bias.reshape(-1)
    out = F.conv2d(side_by_side, weight.flatten(0, 1), flat, stride, padding, dilation, groups * clients)
    return out.reshape(len(out), clients, -1, *out.shape[2:]).transpose(0, 1).flatten(0, 1)


@cache
def _kernels() -> ModuleType | None:
    """Our own kernels, where Triton is there to compile them."""
    try:
        return import_module("undergrowth.engines.vector.kernels")
    except ImportError:
        return None


class _Product(torch.autograd.Function):
    """As one batched matrix product over copied patches, which a GPU does many times faster than a grouped one.

    Channels lie innermost throughout: what comes out of the product is what the next layer takes, without a copy.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
        kernels = _kernels()
        assert kernels is not None
        clients, outputs, _, size, _ = weight.shape
        maps = x.permute(0, 2, 3, 1).contiguous()
        patches = kernels.unfold(maps, size, stride, padding).reshape(clients, -1, weight[0, 0].numel())
        matrix = weight.permute(0, 3, 4, 2, 1).reshape(clients, -1, outputs)
        out = torch.bmm(patches, matrix) if bias is None else torch.baddbmm(bias.unsqueeze(1), patches, matrix)
        ctx.save_for_backward(patches, matrix)
        ctx.maps, ctx.weight, ctx.stride, ctx.padding = maps.shape, weight.shape, stride, padding
        high = (x.shape[2] + 2 * padding - size) // stride + 1
        return out.reshape(len(x), high, -1, outputs).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        kernels = _kernels()
        assert kernels is not None
        patches, matrix = ctx.saved_tensors
        clients, outputs, channels, size, _ = ctx.weight
        slope = gradient.permute(0, 2, 3, 1).contiguous().reshape(clients, -1, outputs)
        to_x = to_weight = to_bias = None
        if ctx.needs_input_grad[0]:
            spread = torch.bmm(slope, matrix.transpose(1, 2))
            to_x = kernels.fold(spread, ctx.maps, size, ctx.stride, ctx.padding).permute(0, 3, 1, 2)
        if ctx.needs_input_grad[1]:
            turned = torch.bmm(patches.transpose(1, 2), slope).reshape(clients, size, size, channels, outputs)
            to_weight = turned.permute(0, 4, 3, 1, 2).contiguous()
        if ctx.needs_input_grad[2]:
            to_bias = slope.sum(1)
        return to_x, to_weight, to_bias, None, None


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _same(padding: Any, weight: Tensor) -> tuple[int, int]:
    if padding == "valid":
        return (0, 0)
    if padding == "same":
        if weight.shape[3] % 2 == 0 or weight.shape[4] % 2 == 0:
            raise NotImplementedError("a stacked convolution pads both sides alike")
        return (weight.shape[3] // 2, weight.shape[4] // 2)
    return _pair(padding)
