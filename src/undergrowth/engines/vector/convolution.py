"""Convolution with weights of their own for every client, and pooling of maps that lie as it leaves them."""

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
    if square and groups == 1 and dilation == (1, 1) and (fast := gpu(x)):
        return fast.convolve(x, weight, bias, stride[0], padding[0])  # type: ignore[no-any-return]
    return _grouped(x, weight, bias, stride, padding, dilation, groups)


def _grouped(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """One convolution in which every client is a group of channels."""
    clients, channels = len(weight), x.shape[1]
    if clients == 1:
        return F.conv2d(x, weight[0], None if bias is None else bias[0], stride, padding, dilation, groups)
    apart = x.reshape(clients, -1, channels, *x.shape[2:])
    side_by_side = apart.transpose(0, 1).reshape(-1, clients * channels, *x.shape[2:])
    flat = None if bias is None else bias.reshape(-1)
    out = F.conv2d(side_by_side, weight.flatten(0, 1), flat, stride, padding, dilation, groups * clients)
    return out.reshape(len(out), clients, -1, *out.shape[2:]).transpose(0, 1).flatten(0, 1)


def gpu(x: Tensor) -> ModuleType | None:
    """The layers that have kernels of their own for such numbers. In double precision, torch's are taken."""
    return kernels() if x.is_cuda and x.dtype != torch.float64 else None


@cache
def kernels() -> ModuleType | None:
    """None: Triton is not there to compile them."""
    try:
        return import_module("undergrowth.engines.vector.gpu")
    except ImportError:
        return None


def pool(x: Tensor, size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Tensor:
    """The largest of every window. A sample's maps are its own, so that only the speed differs from torch's."""
    size, padding, dilation = _pair(size), _pair(padding), _pair(dilation)
    stride = _pair(stride) if stride else size
    apart = size == stride and size[0] == size[1] and padding == (0, 0) and dilation == (1, 1) and not ceil_mode
    if x.dim() == 4 and apart and (fast := gpu(x)):
        return fast.pool(x, size[0])  # type: ignore[no-any-return]
    return F.max_pool2d(x, size, stride, padding, dilation, ceil_mode)


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
