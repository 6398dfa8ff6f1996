"""Layers of stacked clients on a GPU, in channels-last layout from the first layer to the last."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from undergrowth.engines.vector.gpu import kernels, norm_kernels


class Convolution(torch.autograd.Function):
    """Matrix products over patches of the maps, many times faster on a GPU than a grouped convolution.

    In channels-last layout, so that the next layer can read the result without a copy.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
        if torch.is_autocast_enabled("cuda"):
            x, weight = x.bfloat16(), weight.bfloat16()
        clients, size = len(weight), weight.shape[3]
        maps = kernels.shortened(x.permute(0, 2, 3, 1).contiguous(), clients)
        weights = kernels.shortened(weight.contiguous(), clients)
        matrix = weights._replace(values=weights.values.permute(0, 1, 3, 4, 2).flatten(2))
        high, wide = ((side + 2 * padding - size) // stride + 1 for side in x.shape[2:])
        out = kernels.multiply(maps, matrix, bias, (high, wide), size, stride, padding)
        ctx.save_for_backward(*maps, *weights)
        ctx.size, ctx.stride, ctx.padding = size, stride, padding
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        maps, weights = kernels.Short(*ctx.saved_tensors[:2]), kernels.Short(*ctx.saved_tensors[2:])
        clients, outputs = weights.values.shape[:2]
        slopes = gradient.permute(0, 2, 3, 1).contiguous()
        window = (ctx.size, ctx.stride, ctx.padding)
        to_x = to_weight = to_bias = largest = None
        if ctx.needs_input_grad[2]:
            sums, largest = norm_kernels.survey(slopes.reshape(clients, -1, outputs))
            to_bias = sums.sum(1)
        slope = kernels.shortened(slopes, clients, largest)
        if ctx.needs_input_grad[0]:
            matrix = weights._replace(values=weights.values.permute(0, 2, 3, 4, 1).flatten(2))
            high, wide = maps.values.shape[1:3]
            to_x = kernels.multiply(slope, matrix, None, (high, wide), *window, backward=True)
        if ctx.needs_input_grad[1]:
            to_weight = kernels.gather(maps, slope, clients, *window)
        return None if to_x is None else to_x.permute(0, 3, 1, 2), to_weight, to_bias, None, None


class Pool(torch.autograd.Function):
    """Max pooling. Torch's stores eight-byte indices and, in channels-last layout, adds gradients one by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int) -> Tensor:
        maps = x.permute(0, 2, 3, 1).contiguous()
        out, which = kernels.pool(maps, size)
        ctx.save_for_backward(which)
        ctx.shape, ctx.size = maps.shape, size
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (which,) = ctx.saved_tensors
        return kernels.unpool(gradient, which, ctx.shape, ctx.size).permute(0, 3, 1, 2), None


class Normalisation(torch.autograd.Function):
    """Batch normalisation in four passes over the maps, two forward and two backward; torch takes about fifteen."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, mask: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        counts, means, squares = norm_kernels.moments(values, mask)  # K × parts × C each
        count = counts.sum(1)
        mean = (counts * means).sum(1) / count
        variance = (squares + counts * (means - mean.unsqueeze(1)).square()).sum(1) / count
        inverse = torch.rsqrt(variance + eps)
        scale = inverse if weight is None else inverse * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        ctx.save_for_backward(values, mask, mean, inverse, scale, count)
        ctx.mark_non_differentiable(mean, variance, count)
        return norm_kernels.scale(values, scale, shift), mean, variance, count

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        values, mask, mean, inverse, scale, count = ctx.saved_tensors
        slope = gradient.contiguous()
        sums, products = (
            part.sum(1) for part in norm_kernels.slopes(slope, values, mean)
        )  # of slope, slope · (x − mean)
        to_weight = products * inverse
        to_x = None
        if ctx.needs_input_grad[0]:
            # scale · (slope − mean(slope) − x̂ · mean(slope · x̂)), as a sum of slope, x and constants
            of_x = -scale * inverse * to_weight / count
            to_x = norm_kernels.scale(slope, scale, -scale * sums / count - of_x * mean, values, of_x, mask)
        return (
            to_x,
            None,
            to_weight if ctx.needs_input_grad[2] else None,
            sums if ctx.needs_input_grad[3] else None,
            None,
        )
