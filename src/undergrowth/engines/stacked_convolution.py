"""Convolution with weights of their own for every client."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def convolve(x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
    """x: K × B × C × H × W, weight: K × O × C/groups × h × w; gives K × B × O × H' × W'."""
    stride, padding, dilation = _pair(stride), _same(padding, weight), _pair(dilation)
    if x.is_cuda and groups == 1 and dilation == (1, 1):
        return _Patches.apply(x, weight, stride, padding)  # type: ignore[no-any-return]
    return _grouped(x, weight, stride, padding, dilation, groups)


def _grouped(x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
    """One convolution in which every client is a group of channels."""
    clients, batch, channels = x.shape[:3]
    side_by_side = x.transpose(0, 1).reshape(batch, clients * channels, *x.shape[3:])
    out = F.conv2d(side_by_side, weight.flatten(0, 1), None, stride, padding, dilation, groups * clients)
    return out.reshape(batch, clients, -1, *out.shape[2:]).transpose(0, 1)


class _Patches(torch.autograd.Function):
    """As one batched matrix product over copied patches, which GPUs do ten times faster than grouped convolution."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]
    ) -> Tensor:
        clients, batch = x.shape[:2]
        size = weight.shape[3:]
        patches = unfolded(x, size, stride, padding)  # K × C·h·w × B·H'·W'
        out = torch.bmm(weight.flatten(2), patches)
        high, wide = _out(x.shape[3], size[0], stride[0], padding[0]), _out(x.shape[4], size[1], stride[1], padding[1])
        ctx.save_for_backward(patches, weight)
        ctx.shape, ctx.stride, ctx.padding = x.shape, stride, padding
        return out.reshape(clients, -1, batch, high, wide).transpose(1, 2).contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        patches, weight = ctx.saved_tensors
        flat = gradient.transpose(1, 2).reshape(gradient.shape[0], weight.shape[1], -1)  # K × O × B·H'·W'
        to_x = to_weight = None
        if ctx.needs_input_grad[1]:
            to_weight = torch.bmm(flat, patches.transpose(1, 2)).reshape(weight.shape)
        if ctx.needs_input_grad[0]:
            to_x = folded(torch.bmm(weight.flatten(2).transpose(1, 2), flat), ctx.shape, weight.shape[3:], ctx)
        return to_x, to_weight, None, None


def unfolded(x: Tensor, size: Any, stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
    """The patches that a kernel of that size sees: K × C·h·w × B·H'·W', in one copy."""
    clients, _, channels = x.shape[:3]
    padded = F.pad(x, (padding[1], padding[1], padding[0], padding[0])) if any(padding) else x
    windows = padded.unfold(3, size[0], stride[0]).unfold(4, size[1], stride[1])  # K B C H' W' h w
    return windows.permute(0, 2, 5, 6, 1, 3, 4).reshape(clients, channels * size[0] * size[1], -1)


def folded(patches: Tensor, shape: Any, size: Any, ctx: Any) -> Tensor:
    """The sum of all patches at their places: what `unfolded` does, backwards."""
    clients, batch, channels, high, wide = shape
    each = patches.reshape(clients, channels * size[0] * size[1], batch, -1).transpose(1, 2).flatten(0, 1)
    out = F.fold(each, (high, wide), tuple(size), padding=ctx.padding, stride=ctx.stride)
    return out.reshape(shape)


def _out(length: int, size: int, stride: int, padding: int) -> int:
    return (length + 2 * padding - size) // stride + 1


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
