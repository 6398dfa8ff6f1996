"""Batch normalisation with separate statistics for every client, over its real samples only."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from undergrowth.engines.vector.gpu_layers import gpu_layers


class Normalised(NamedTuple):
    """Normalised maps, and their ReLU in fewer passes than torch's, where there are kernels for it."""

    maps: Tensor
    rectify: Callable[[], Tensor] | None = None


def normalise(
    x: Tensor,
    clients: int,
    mask: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Normalised:
    """x: K·B × C × …, statistics and weights: K × C, mask: 1 for real samples, K × B; None: all are real."""
    running = None if running_mean is None or running_var is None else (running_mean, running_var)
    channels_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    measured = training or running is None
    if channels_last and (fast := gpu_layers(x)):
        return _with_kernels(fast, x, clients, mask, running, weight, bias, momentum, eps, measured)
    maps = x.permute(0, 2, 3, 1) if channels_last else x
    values, pixels = _values(maps, clients, channels_last)
    if measured:
        mean, variance, count = _statistics(values, mask, pixels)
        out = _scaled(values, mean, variance, weight, bias, eps, pixels)
        if running is not None:
            with torch.no_grad():
                running[0].lerp_(mean.detach(), momentum)
                running[1].lerp_(variance.detach() * (count / (count - 1)), momentum)
    else:
        assert running is not None
        out = _scaled(values, *running, weight, bias, eps, pixels)
    out = out.to(x.dtype)
    return Normalised(out.reshape(maps.shape).permute(0, 3, 1, 2) if channels_last else out.reshape(x.shape))


def _with_kernels(
    fast: ModuleType,
    x: Tensor,
    clients: int,
    mask: Tensor | None,
    running: tuple[Tensor, Tensor] | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
    measured: bool,
) -> Normalised:
    """Maps in channels-last layout, with the statistics of the batch if `measured`, otherwise with the running ones."""
    maps = x.permute(0, 2, 3, 1)
    values = maps.reshape(clients, -1, x.shape[1])
    if not measured:
        assert running is not None
        statistics = fast.fixed_statistics(*running, weight, bias, eps)
    elif running is not None and not all(each.is_contiguous() for each in running):
        raise NotImplementedError("clients in a stack cannot share statistics that they change")
    else:
        statistics = fast.statistics(values, mask, weight, bias, eps, running, momentum)
    out: Tensor = fast.normalise(values, mask, weight, bias, statistics)

    def rectify() -> Tensor:
        rectified: Tensor = fast.normalise(values, mask, weight, bias, statistics, out.detach())
        return rectified.reshape(maps.shape).permute(0, 3, 1, 2)

    return Normalised(out.reshape(maps.shape).permute(0, 3, 1, 2), rectify)


def _values(maps: Tensor, clients: int, channels_last: bool) -> tuple[Tensor, int]:
    """K × B × pixels × C, or K × B × C × pixels, whichever needs no copy; and the dimension of the pixels.

    In float32 also for maps in bfloat16, because statistics are computed in float32.
    """
    maps = maps.float() if maps.dtype == torch.bfloat16 else maps
    if channels_last:
        return maps.reshape(clients, -1, maps[0, ..., 0].numel(), maps.shape[-1]), 2
    return maps.reshape(clients, len(maps) // clients, maps.shape[1], -1), 3


def _scaled(
    values: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, pixels: int
) -> Tensor:
    scale = torch.rsqrt(variance + eps)
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    return torch.addcmul(shift.unsqueeze(1).unsqueeze(pixels), values, scale.unsqueeze(1).unsqueeze(pixels))


def _statistics(values: Tensor, mask: Tensor | None, pixels: int) -> tuple[Tensor, Tensor, Any]:
    """Mean and biased variance of every client and channel, and the number of values they are computed from."""
    if mask is None:
        variance, mean = torch.var_mean(values, dim=(1, pixels), correction=0)
        return mean, variance, values.shape[1] * values.shape[pixels]
    real = mask[:, :, None, None]
    count = mask.sum(1, keepdim=True) * values.shape[pixels]  # K × 1
    mean = (values * real).sum((1, pixels)) / count
    centred = values - mean.unsqueeze(1).unsqueeze(pixels)
    variance = (centred.square() * real).sum((1, pixels)) / count
    return mean, variance, count
