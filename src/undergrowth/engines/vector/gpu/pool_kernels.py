"""Triton kernels for max pooling of maps in channels-last layout, N × H × W × C."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # values per program


@triton.jit
def _pool(
    maps, out, which, total, high, wide, out_high, out_wide,
    channels: tl.constexpr, size: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest value of every window, and its index in the window. Windows do not overlap."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < total
    channel = at % channels
    column = at // channels % out_wide
    row = at // channels // out_wide % out_high
    sample = at // channels // out_wide // out_high
    corner = ((sample * high + row * size) * wide + column * size) * channels + channel
    best = tl.load(maps + corner, mask=there)
    chosen = tl.zeros((BLOCK,), dtype=tl.int8)
    for place in tl.static_range(1, size * size):
        value = tl.load(maps + corner + (place // size * wide + place % size) * channels, mask=there)
        larger = (value > best) | (value != value)  # NaN wins, as in torch
        best = tl.where(larger, value, best)
        chosen = tl.where(larger, place, chosen).to(tl.int8)
    tl.store(out + at, best, mask=there)
    tl.store(which + at, chosen, mask=there)


@triton.jit
def _unpool(
    slope, which, out, total, high, wide, out_high, out_wide, by_sample, by_channel, by_row, by_column,
    channels: tl.constexpr, size: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Passes the gradient of every window, in any layout, to the pixel that was its largest."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < total
    channel = at % channels
    column = at // channels % wide
    row = at // channels // wide % high
    sample = at // channels // wide // high
    # Pixels left over at the edges belong to no window.
    inside = there & (row < out_high * size) & (column < out_wide * size)
    window = ((sample * out_high + row // size) * out_wide + column // size) * channels + channel
    mine = tl.load(which + window, mask=inside, other=-1) == (row % size) * size + column % size
    source = sample * by_sample + channel * by_channel + row // size * by_row + column // size * by_column
    tl.store(out + at, tl.load(slope + source, mask=inside & mine, other=0.0), mask=there)


def pool(maps: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The largest value of every s × s window, and its index in the window. maps: N × H × W × C."""
    samples, high, wide, channels = maps.shape
    out = torch.empty(samples, high // size, wide // size, channels, device=maps.device, dtype=maps.dtype)
    which = torch.empty(out.shape, device=maps.device, dtype=torch.int8)
    _pool[(triton.cdiv(out.numel(), BLOCK),)](
        maps, out, which, out.numel(), high, wide, high // size, wide // size, channels, size, BLOCK
    )
    return out, which


def unpool(slope: Tensor, which: Tensor, shape: torch.Size, size: int) -> Tensor:
    """The gradient of the input of `pool`, N × H × W × C, from that of its output, N × C × H' × W'."""
    _, high, wide, channels = shape
    out = torch.empty(shape, device=slope.device, dtype=slope.dtype)
    _unpool[(triton.cdiv(out.numel(), BLOCK),)](
        slope, which, out, out.numel(), high, wide, high // size, wide // size, *slope.stride(), channels, size, BLOCK
    )
    return out
