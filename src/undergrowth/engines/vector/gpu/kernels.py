"""Two kernels for convolutions on a GPU, in Triton: patches out of maps, and the sum of patches back into maps.

Maps lie with their channels innermost, so that a patch is a few long runs of memory: both kernels move memory at the
speed of the GPU, where torch's own spend their time on finding places.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _unfold(
    maps, patches, rows, high, wide, out_high, out_wide,
    channels: tl.constexpr, size: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr,
    ROWS: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    taps: tl.constexpr = size * size * channels
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    tap = tl.program_id(1) * TAPS + tl.arange(0, TAPS)
    sample = row // (out_high * out_wide)
    top = (row // out_wide) % out_high * stride - padding
    left = row % out_wide * stride - padding
    at_row = top[:, None] + (tap // (size * channels))[None, :]
    at_column = left[:, None] + (tap // channels % size)[None, :]
    inside = (at_row >= 0) & (at_row < high) & (at_column >= 0) & (at_column < wide)
    real = (row < rows)[:, None] & (tap < taps)[None, :]
    source = ((sample[:, None] * high + at_row) * wide + at_column) * channels + (tap % channels)[None, :]
    values = tl.load(maps + source, mask=inside & real, other=0.0)
    tl.store(patches + row[:, None] * taps + tap[None, :], values, mask=real)


@triton.jit
def _fold(
    patches, maps, pixels, high, wide, out_high, out_wide,
    channels: tl.constexpr, size: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    taps: tl.constexpr = size * size * channels
    pixel = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    sample = pixel // (high * wide)
    row = (pixel // wide) % high + padding
    column = pixel % wide + padding
    real = (pixel < pixels)[:, None] & (channel < channels)[None, :]
    total = tl.zeros((PIXELS, CHANNELS), dtype=tl.float32)
    for up in tl.static_range(size):
        for left in tl.static_range(size):
            top, side = row - up, column - left
            fits = (top >= 0) & (top % stride == 0) & (top // stride < out_high)
            fits &= (side >= 0) & (side % stride == 0) & (side // stride < out_wide)
            patch = (sample * out_high + top // stride) * out_wide + side // stride
            source = patch[:, None] * taps + ((up * size + left) * channels + channel)[None, :]
            total += tl.load(patches + source, mask=real & fits[:, None], other=0.0)
    tl.store(maps + pixel[:, None] * channels + channel[None, :], total, mask=real)


def unfold(maps: Tensor, size: int, stride: int, padding: int) -> Tensor:
    """maps: N × H × W × C; gives N·H'·W' × s·s·C."""
    samples, high, wide, channels = maps.shape
    out_high, out_wide = (high + 2 * padding - size) // stride + 1, (wide + 2 * padding - size) // stride + 1
    rows, taps = samples * out_high * out_wide, size * size * channels
    patches = torch.empty(rows, taps, device=maps.device, dtype=maps.dtype)
    block = min(256, triton.next_power_of_2(taps))
    tall = 4096 // block
    _unfold[(triton.cdiv(rows, tall), triton.cdiv(taps, block))](
        maps, patches, rows, high, wide, out_high, out_wide, channels, size, stride, padding, tall, block
    )
    return patches


def fold(patches: Tensor, shape: torch.Size, size: int, stride: int, padding: int) -> Tensor:
    """patches: N·H'·W' × s·s·C; gives their sum at their places, N × H × W × C."""
    samples, high, wide, channels = shape
    out_high, out_wide = (high + 2 * padding - size) // stride + 1, (wide + 2 * padding - size) // stride + 1
    maps = torch.empty(shape, device=patches.device, dtype=patches.dtype)
    block = min(64, triton.next_power_of_2(channels))
    tall = 1024 // block
    pixels = samples * high * wide
    _fold[(triton.cdiv(pixels, tall), triton.cdiv(channels, block))](
        patches, maps, pixels, high, wide, out_high, out_wide, channels, size, stride, padding, tall, block
    )
    return maps
