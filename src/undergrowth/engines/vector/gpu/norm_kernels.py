"""Triton kernels for batch normalisation. Values are clients × rows × channels.

A row is one pixel of one sample. The mask is 1 for real samples, clients × samples.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 128  # of a tile
MAX_PARTS = 1024  # programs that share the rows of all clients


@triton.jit
def _moments(
    values, mask, counts, means, squares, rows, part, parts, pixels,
    channels: tl.constexpr, masked: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Count, mean and sum of squared differences from the mean of one part of a client's rows, for every channel."""
    client = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    count = tl.zeros((CHANNELS,), dtype=tl.float32)
    mean = tl.zeros((CHANNELS,), dtype=tl.float32)
    square = tl.zeros((CHANNELS,), dtype=tl.float32)
    last = tl.minimum(rows, (piece + 1) * part)
    for first in range(piece * part, last, ROWS):
        row = first + tl.arange(0, ROWS)
        there = (row < last)[:, None] & (channel < channels)[None, :]
        real = there.to(tl.float32)
        if masked:
            real *= tl.load(mask + client * (rows // pixels) + row // pixels, mask=row < last, other=0.0)[:, None]
        value = tl.load(values + (client * rows + row[:, None]) * channels + channel[None, :], mask=there, other=0.0)
        value = value.to(tl.float32)
        # Merged with the rows before by the formula for two sets of values, which does not lose precision as a plain
        # sum of squares would.
        here = tl.sum(real, 0)
        middle = tl.sum(value * real, 0) / tl.maximum(here, 1.0)
        away = (value - middle[None, :]) * real
        both = tl.maximum(count + here, 1.0)
        step = middle - mean
        square += tl.sum(away * away, 0) + step * step * count * here / both
        mean += step * here / both
        count += here
    to = (client * parts + piece) * channels + channel
    tl.store(counts + to, count, mask=channel < channels)
    tl.store(means + to, mean, mask=channel < channels)
    tl.store(squares + to, square, mask=channel < channels)


@triton.jit
def _survey(
    values, sums, largest, rows, part, parts, blocks,
    channels: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The sum of one part of a client's rows, for every channel, and the largest magnitude in it."""
    client = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    total = tl.zeros((CHANNELS,), dtype=tl.float32)
    most = tl.zeros((CHANNELS,), dtype=tl.int32)
    last = tl.minimum(rows, (piece + 1) * part)
    for first in range(piece * part, last, ROWS):
        row = first + tl.arange(0, ROWS)
        there = (row < last)[:, None] & (channel < channels)[None, :]
        value = tl.load(values + (client * rows + row[:, None]) * channels + channel[None, :], mask=there, other=0.0)
        value = value.to(tl.float32)
        total += tl.sum(value, 0)
        # As integers with the same bits: the order is the same, and NaN is greater than all numbers.
        most = tl.maximum(most, tl.max(tl.abs(value).to(tl.int32, bitcast=True), 0))
    to = (client * parts + piece) * channels + channel
    tl.store(sums + to, total, mask=channel < channels)
    tl.store(largest + (client * parts + piece) * blocks + tl.program_id(2), tl.max(most, 0))


@triton.jit
def _slopes(
    slope, values, mean, sums, products, rows, part, parts,
    channels: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Σ slope and Σ slope · (x − mean) over one part of a client's rows. The slope of padding rows is 0."""
    client = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    middle = tl.load(mean + client * channels + channel, mask=channel < channels, other=0.0)
    total = tl.zeros((CHANNELS,), dtype=tl.float32)
    product = tl.zeros((CHANNELS,), dtype=tl.float32)
    last = tl.minimum(rows, (piece + 1) * part)
    for first in range(piece * part, last, ROWS):
        row = first + tl.arange(0, ROWS)
        there = (row < last)[:, None] & (channel < channels)[None, :]
        at = (client * rows + row[:, None]) * channels + channel[None, :]
        gradient = tl.load(slope + at, mask=there, other=0.0).to(tl.float32)
        value = tl.load(values + at, mask=there, other=0.0).to(tl.float32)
        total += tl.sum(gradient, 0)
        product += tl.sum(gradient * (value - middle[None, :]), 0)
    to = (client * parts + piece) * channels + channel
    tl.store(sums + to, total, mask=channel < channels)
    tl.store(products + to, product, mask=channel < channels)


@triton.jit
def _scale(
    first, times, plus, second, times_second, mask, out, total, rows, pixels,
    channels: tl.constexpr, two: tl.constexpr, masked: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """first · times + plus, or first · times + (second · times_second + plus) where the sample is real."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < total
    row = at // channels
    constant = row // rows * channels + at % channels
    value = tl.load(first + at, mask=there).to(tl.float32) * tl.load(times + constant, mask=there)
    added = tl.load(plus + constant, mask=there)
    if two:
        added += tl.load(second + at, mask=there).to(tl.float32) * tl.load(times_second + constant, mask=there)
    if masked:
        added *= tl.load(mask + row // pixels, mask=there)
    tl.store(out + at, (value + added).to(out.dtype.element_ty), mask=there)


def moments(values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and sum of squared differences from the mean: K × parts × C each."""
    grid, part, block = _parts(values)
    found = [torch.empty(*grid[:2], values.shape[2], device=values.device) for _ in range(3)]
    pixels = 1 if mask is None else values.shape[1] // mask.shape[1]
    _moments[grid](
        values, values if mask is None else mask, *found, values.shape[1], part, grid[1], pixels,
        values.shape[2], mask is not None, ROWS, block,
    )  # fmt: skip
    return found[0], found[1], found[2]


def survey(values: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of parts of the rows, K × parts × C, and their largest magnitudes as float bits, K × (parts · blocks).

    Torch's sum takes three times as long in channels-last layout.
    """
    grid, part, block = _parts(values)
    clients, parts, blocks = grid
    sums = torch.empty(clients, parts, values.shape[2], device=values.device)
    largest = torch.empty(clients, parts * blocks, device=values.device, dtype=torch.int32)
    _survey[grid](values, sums, largest, values.shape[1], part, parts, blocks, values.shape[2], ROWS, block)
    return sums, largest


def slopes(slope: Tensor, values: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Σ slope and Σ slope · (x − mean), K × parts × C each."""
    grid, part, block = _parts(values)
    found = [torch.empty(*grid[:2], values.shape[2], device=values.device) for _ in range(2)]
    _slopes[grid](slope, values, mean, *found, values.shape[1], part, grid[1], values.shape[2], ROWS, block)
    return found[0], found[1]


def scale(
    first: Tensor, times: Tensor, plus: Tensor, second: Tensor | None = None, times_second: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """first · times + (second · times_second + plus) · mask, with constants K × C and a mask K × samples."""
    out = torch.empty_like(first)
    pixels = 1 if mask is None else first.shape[1] // mask.shape[1]
    _scale[(triton.cdiv(out.numel(), 1024),)](
        first, times, plus, first if second is None else second, plus if times_second is None else times_second,
        first if mask is None else mask, out, out.numel(), first.shape[1], pixels,
        first.shape[2], second is not None, mask is not None, 1024,
    )  # fmt: skip
    return out


def _parts(values: Tensor) -> tuple[tuple[int, int, int], int, int]:
    """The grid (clients, parts of rows, blocks of channels), the rows of a part and the channels of a block."""
    clients, rows, channels = values.shape
    block = min(32, triton.next_power_of_2(channels))
    parts = max(1, min(triton.cdiv(rows, ROWS), MAX_PARTS // clients))
    return (clients, parts, triton.cdiv(channels, block)), triton.cdiv(rows, parts), block
