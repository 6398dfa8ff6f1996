"""Layers of stacked clients on a GPU, in channels-last layout from the first layer to the last."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from undergrowth.engines.vector.gpu import convolution_kernels, dropout_kernels, norm_kernels, pool_kernels
from undergrowth.engines.vector.gpu.norm_kernels import Statistics


class Convolution(torch.autograd.Function):
    """Matrix products over patches of the maps, many times faster on a GPU than a grouped convolution.

    In channels-last layout, so that the next layer can read the result without a copy.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
        if torch.is_autocast_enabled("cuda"):
            x = x.bfloat16()
        clients, size = len(weight), weight.shape[3]
        maps = convolution_kernels.shortened(x.permute(0, 2, 3, 1).contiguous(), clients)
        matrix, transposed = convolution_kernels.arranged(weight, maps.values.dtype, both=ctx.needs_input_grad[0])
        high, wide = ((side + 2 * padding - size) // stride + 1 for side in x.shape[2:])
        out = convolution_kernels.multiply(maps, matrix, bias, (high, wide), size, stride, padding)
        ctx.save_for_backward(*maps, *transposed)
        ctx.clients, ctx.size, ctx.stride, ctx.padding = clients, size, stride, padding
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        maps, matrix = (convolution_kernels.Short(*ctx.saved_tensors[part : part + 2]) for part in (0, 2))
        slopes = gradient.permute(0, 2, 3, 1).contiguous()
        clients, outputs, window = ctx.clients, slopes.shape[3], (ctx.size, ctx.stride, ctx.padding)
        to_x = to_weight = to_bias = largest = None
        if ctx.needs_input_grad[2]:
            sums, largest = norm_kernels.survey(slopes.reshape(clients, -1, outputs))
            to_bias = sums.sum(1)
        slope = convolution_kernels.shortened(slopes, clients, largest)
        if ctx.needs_input_grad[0]:
            high, wide = maps.values.shape[1:3]
            to_x = convolution_kernels.multiply(slope, matrix, None, (high, wide), *window, backward=True)
        if ctx.needs_input_grad[1]:
            to_weight = convolution_kernels.gather(maps, slope, clients, *window)
        return None if to_x is None else to_x.permute(0, 3, 1, 2), to_weight, to_bias, None, None


class Pool(torch.autograd.Function):
    """Max pooling. Torch's stores eight-byte indices and, in channels-last layout, adds gradients one by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int) -> Tensor:
        maps = x.permute(0, 2, 3, 1).contiguous()
        out, which = pool_kernels.pool(maps, size)
        ctx.save_for_backward(which)
        ctx.shape, ctx.size = maps.shape, size
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (which,) = ctx.saved_tensors
        return pool_kernels.unpool(gradient, which, ctx.shape, ctx.size).permute(0, 3, 1, 2), None


class Dropout(torch.autograd.Function):
    """Dropout from keys, one pass over the values in each direction."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Tensor, p: float) -> Tensor:
        ctx.save_for_backward(keys)
        ctx.p = p
        return _dropped(x, keys, p)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (keys,) = ctx.saved_tensors
        return _dropped(gradient, keys, ctx.p), None, None


def _dropped(x: Tensor, keys: Tensor, p: float) -> Tensor:
    if x.dim() != 4:
        return dropout_kernels.drop(x.flatten(1).contiguous(), keys, p).view(x.shape)
    maps = x.permute(0, 2, 3, 1).contiguous()
    return dropout_kernels.drop(maps.flatten(1, 2), keys, p).view(maps.shape).permute(0, 3, 1, 2)


class Normalisation(torch.autograd.Function):
    """Batch normalisation in four passes over the maps, two forward and two backward; torch takes about fifteen.

    `normalised`: None, or the result of this function, of which the ReLU is wanted. The backward pass of the ReLU then
    needs no passes of its own: which values are positive follows from `values` and `statistics`.
    """

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, mask: Tensor | None, weight: Tensor | None, bias: Tensor | None,
        statistics: Statistics, normalised: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        del weight, bias  # in the statistics
        ctx.save_for_backward(values, mask, *statistics)
        ctx.rectified = normalised is not None
        return norm_kernels.normalised(values, statistics) if normalised is None else normalised.relu()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, mask, *saved = ctx.saved_tensors
        statistics, slope = Statistics(*saved), gradient.contiguous()
        found = norm_kernels.gradients(slope, values, statistics, ctx.rectified)
        to_values = None
        if ctx.needs_input_grad[0]:
            to_values = norm_kernels.gradient_of_values(slope, values, mask, statistics, found, ctx.rectified)
        _, _, for_weight, for_bias, *_ = ctx.needs_input_grad
        return to_values, None, found.weight if for_weight else None, found.bias if for_bias else None, None, None
