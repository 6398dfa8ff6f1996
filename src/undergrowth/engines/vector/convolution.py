"""Convolution with different weights for every client, and max pooling in the memory layout it produces."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from undergrowth.engines.vector.gpu_layers import gpu_layers


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """x: K·B × C × H × W, weight: K × O × C/groups × h × w; gives K·B × O × H' × W'."""
    stride, padding, dilation = _pair(stride), _padding(padding, weight), _pair(dilation)
    square = weight.shape[3] == weight.shape[4] and stride[0] == stride[1] and padding[0] == padding[1]
    if square and groups == 1 and dilation == (1, 1) and (fast := gpu_layers(x)):
        out: Tensor = fast.convolve(x, weight, bias, stride[0], padding[0])
        return out
    return _grouped(x, weight, bias, stride, padding, dilation, groups)


def _grouped(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """One convolution in which every client is a group of channels."""
    clients, channels = len(weight), x.shape[1]
    if clients == 1:
        return F.conv2d(x, weight[0], None if bias is None else bias[0], stride, padding, dilation, groups)
    by_client = x.reshape(clients, -1, channels, *x.shape[2:])
    as_channels = by_client.transpose(0, 1).reshape(-1, clients * channels, *x.shape[2:])
    flat_bias = None if bias is None else bias.reshape(-1)
    out = F.conv2d(as_channels, weight.flatten(0, 1), flat_bias, stride, padding, dilation, groups * clients)
    return out.reshape(len(out), clients, -1, *out.shape[2:]).transpose(0, 1).flatten(0, 1)


def pool(x: Tensor, size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Tensor:
    """Max pooling. It works on single samples, so the result is torch's and only the speed differs."""
    size, padding, dilation = _pair(size), _pair(padding), _pair(dilation)
    stride = _pair(stride) if stride else size
    plain = size == stride and size[0] == size[1] and padding == (0, 0) and dilation == (1, 1) and not ceil_mode
    if x.dim() == 4 and plain and (fast := gpu_layers(x)):
        out: Tensor = fast.pool(x, size[0])
        return out
    return F.max_pool2d(x, size, stride, padding, dilation, ceil_mode)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _padding(padding: Any, weight: Tensor) -> tuple[int, int]:
    if padding == "valid":
        return (0, 0)
    if padding == "same":
        if weight.shape[3] % 2 == 0 or weight.shape[4] % 2 == 0:
            raise NotImplementedError("a stacked convolution needs the same padding on both sides")
        return (weight.shape[3] // 2, weight.shape[4] // 2)
    return _pair(padding)
