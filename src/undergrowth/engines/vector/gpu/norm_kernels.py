"""Triton kernels for batch normalisation. Values are clients × rows × channels.

A row is one pixel of one sample. The mask is 1 for real samples, clients × samples. A program that sums over rows
keeps one sum for each place of its tile until the last row: sums across threads take longer than reading the values.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 128  # of a tile
PARTS = 128  # whose sums are added at a time, and of a client at most
BLOCK = 2048  # values per program of an elementwise kernel
MAX_PARTS = 528  # programs that share the rows of all clients: four for each processor of a large GPU


@triton.jit
def _moments(
    values, mask, counts, means, squares, rows, part, parts, pixels,
    channels: tl.constexpr, masked: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Count, mean and sum of squared differences from the mean of one part of a client's rows, for every channel."""
    client = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    start = piece * part
    last = tl.minimum(rows, start + part)
    values += client * rows * channels
    # Differences from the first row: a plain sum of squares would lose precision where values are far from zero.
    first_row = tl.load(values + tl.minimum(start, rows - 1) * channels + channel, mask=channel < channels, other=0.0)
    near = first_row.to(tl.float32)
    count = tl.zeros((ROWS,), dtype=tl.float32)
    total = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    square = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    for first in range(start, last, ROWS):
        row = first + tl.arange(0, ROWS)
        real = (row < last).to(tl.float32)
        if masked:
            real = tl.load(mask + client * (rows // pixels) + row // pixels, mask=row < last, other=0.0)
        there = (row < last)[:, None] & (channel < channels)[None, :]
        value = tl.load(values + row[:, None] * channels + channel[None, :], mask=there, other=0.0)
        away = (value.to(tl.float32) - near[None, :]) * real[:, None]
        count += real
        total += away
        square += away * away
    number = tl.sum(count, 0)
    away = tl.sum(total, 0)
    mean = away / tl.maximum(number, 1.0)
    to = (client * parts + piece) * channels + channel
    tl.store(counts + to, number + tl.zeros((CHANNELS,), dtype=tl.float32), mask=channel < channels)
    tl.store(means + to, near + mean, mask=channel < channels)
    tl.store(squares + to, tl.maximum(tl.sum(square, 0) - away * mean, 0.0), mask=channel < channels)


@triton.jit
def _summarise(
    counts, means, squares, weight, bias, running_mean, running_var, found, eps, momentum, parts, clients,
    channels: tl.constexpr, weighted: tl.constexpr, biased: tl.constexpr, tracked: tl.constexpr,
    PARTS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The statistics of a client from those of its parts, and what they make of a value: value · scale + shift.

    tracked: the running statistics move towards those of the batch by the factor `momentum`.
    """
    client = tl.program_id(0)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    here = channel < channels
    count = tl.zeros((CHANNELS,), dtype=tl.float32)
    mean = tl.zeros((CHANNELS,), dtype=tl.float32)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)
        at = (client * parts + part[:, None]) * channels + channel[None, :]
        there = (part < parts)[:, None] & here[None, :]
        number = tl.load(counts + at, mask=there, other=0.0)
        count += tl.sum(number, 0)
        mean += tl.sum(number * tl.load(means + at, mask=there, other=0.0), 0)
    count = tl.where(here, count, 1.0)
    mean = mean / count
    variance = tl.zeros((CHANNELS,), dtype=tl.float32)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)
        at = (client * parts + part[:, None]) * channels + channel[None, :]
        there = (part < parts)[:, None] & here[None, :]
        number = tl.load(counts + at, mask=there, other=0.0)
        away = tl.load(means + at, mask=there, other=0.0) - mean[None, :]
        variance += tl.sum(tl.load(squares + at, mask=there, other=0.0) + number * away * away, 0)
    variance = variance / count
    inverse = 1.0 / tl.sqrt_rn(variance + eps)
    own = client * channels + channel
    scale = inverse
    if weighted:
        scale = inverse * tl.load(weight + own, mask=here, other=0.0)
    shift = -mean * scale
    if biased:
        shift += tl.load(bias + own, mask=here, other=0.0)
    if tracked:
        old = tl.load(running_mean + own, mask=here, other=0.0)
        tl.store(running_mean + own, old + momentum * (mean - old), mask=here)
        old = tl.load(running_var + own, mask=here, other=0.0)
        tl.store(running_var + own, old + momentum * (variance * (count / (count - 1.0)) - old), mask=here)
    size = clients * channels
    tl.store(found + own, mean, mask=here)
    tl.store(found + size + own, inverse, mask=here)
    tl.store(found + 2 * size + own, scale, mask=here)
    tl.store(found + 3 * size + own, shift, mask=here)
    tl.store(found + 4 * size + own, count, mask=here)


@triton.jit
def _differentiate(
    sums, products, found, out, parts, clients, channels: tl.constexpr, PARTS: tl.constexpr, CHANNELS: tl.constexpr
):
    """The gradients of bias and weight, and the gradient of a value: slope · scale + value · factor + summand.

    This is scale · (slope − mean(slope) − x̂ · mean(slope · x̂)), with x̂ = (value − mean) · inverse.
    """
    client = tl.program_id(0)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    here = channel < channels
    total = tl.zeros((CHANNELS,), dtype=tl.float32)
    product = tl.zeros((CHANNELS,), dtype=tl.float32)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)
        at = (client * parts + part[:, None]) * channels + channel[None, :]
        there = (part < parts)[:, None] & here[None, :]
        total += tl.sum(tl.load(sums + at, mask=there, other=0.0), 0)
        product += tl.sum(tl.load(products + at, mask=there, other=0.0), 0)
    own = client * channels + channel
    size = clients * channels
    mean = tl.load(found + own, mask=here, other=0.0)
    inverse = tl.load(found + size + own, mask=here, other=0.0)
    scale = tl.load(found + 2 * size + own, mask=here, other=0.0)
    count = tl.load(found + 4 * size + own, mask=here, other=1.0)
    to_weight = product * inverse
    factor = -scale * inverse * to_weight / count
    tl.store(out + own, total, mask=here)
    tl.store(out + size + own, to_weight, mask=here)
    tl.store(out + 2 * size + own, factor, mask=here)
    tl.store(out + 3 * size + own, -scale * total / count - factor * mean, mask=here)


@triton.jit
def _survey(
    values, sums, largest, rows, part, parts, blocks,
    channels: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The sum of one part of a client's rows, for every channel, and the largest magnitude in it."""
    client = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    total = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    most = tl.zeros((ROWS, CHANNELS), dtype=tl.int32)
    last = tl.minimum(rows, (piece + 1) * part)
    for first in range(piece * part, last, ROWS):
        row = first + tl.arange(0, ROWS)
        there = (row < last)[:, None] & (channel < channels)[None, :]
        value = tl.load(values + (client * rows + row[:, None]) * channels + channel[None, :], mask=there, other=0.0)
        value = value.to(tl.float32)
        total += value
        # As integers with the same bits: the order is the same, and NaN is greater than all numbers.
        most = tl.maximum(most, tl.abs(value).to(tl.int32, bitcast=True))
    to = (client * parts + piece) * channels + channel
    tl.store(sums + to, tl.sum(total, 0), mask=channel < channels)
    tl.store(largest + (client * parts + piece) * blocks + tl.program_id(2), tl.max(tl.max(most, 0), 0))


@triton.jit
def _slopes(
    slope, values, mean, scale, shift, sums, products, rows, part, parts,
    channels: tl.constexpr, rectified: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Σ slope and Σ slope · (x − mean) over one part of a client's rows. The slope of padding rows is 0.

    rectified: `slope` is the gradient of the ReLU of the normalised values.
    """
    client = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    own = client * channels + channel
    middle = tl.load(mean + own, mask=channel < channels, other=0.0)
    if rectified:
        times = tl.load(scale + own, mask=channel < channels, other=0.0)
        plus = tl.load(shift + own, mask=channel < channels, other=0.0)
    total = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    product = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    last = tl.minimum(rows, (piece + 1) * part)
    for first in range(piece * part, last, ROWS):
        row = first + tl.arange(0, ROWS)
        there = (row < last)[:, None] & (channel < channels)[None, :]
        at = (client * rows + row[:, None]) * channels + channel[None, :]
        gradient = tl.load(slope + at, mask=there, other=0.0).to(tl.float32)
        value = tl.load(values + at, mask=there, other=0.0).to(tl.float32)
        if rectified:
            gradient = tl.where(value * times[None, :] + plus[None, :] <= 0, 0.0, gradient)
        total += gradient
        product += gradient * (value - middle[None, :])
    to = (client * parts + piece) * channels + channel
    tl.store(sums + to, tl.sum(total, 0), mask=channel < channels)
    tl.store(products + to, tl.sum(product, 0), mask=channel < channels)


@triton.jit
def _scale(
    first, times, plus, second, factor, shift, mask, out, count, pixels,
    channels: tl.constexpr, two: tl.constexpr, rectified: tl.constexpr, masked: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """first · times + plus, or first · times + (second · factor + plus) where the sample is real.

    rectified: `first` is the gradient of the ReLU of second · times + shift.
    """
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    start, own = client * count, client * channels
    channel = at % channels
    value = tl.load(first + start + at, mask=there).to(tl.float32)
    scale = tl.load(times + own + channel, mask=there)
    added = tl.load(plus + own + channel, mask=there)
    if two:
        other = tl.load(second + start + at, mask=there).to(tl.float32)
        added += other * tl.load(factor + own + channel, mask=there)
        if rectified:
            value = tl.where(other * scale + tl.load(shift + own + channel, mask=there) <= 0, 0.0, value)
    if masked:
        added *= tl.load(mask + client * (count // channels // pixels) + at // channels // pixels, mask=there)
    tl.store(out + start + at, (value * scale + added).to(out.dtype.element_ty), mask=there)


class Statistics(NamedTuple):
    """Of the batches of all clients, or fixed ones, K × C each, one after the other in memory."""

    mean: Tensor
    inverse: Tensor  # 1 / standard deviation
    scale: Tensor  # a normalised value is value · scale + shift
    shift: Tensor
    number: Tensor  # of real values


def statistics(
    values: Tensor, mask: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float,
    running: tuple[Tensor, Tensor] | None, momentum: float,
) -> Statistics:  # fmt: skip
    """The statistics of real samples. `running`: mean and variance, which are updated in place."""
    grid, part, block = _parts(values)
    (clients, parts, blocks), channels = grid, values.shape[2]
    found = torch.empty(3, clients, parts, channels, device=values.device)  # count, mean, squares
    pixels = 1 if mask is None else values.shape[1] // mask.shape[1]
    _moments[grid](
        values, values if mask is None else mask, *found, values.shape[1], part, parts, pixels,
        channels, mask is not None, ROWS, block,
    )  # fmt: skip
    out = torch.empty(len(Statistics._fields), clients, channels, device=values.device)
    _summarise[(clients, blocks)](
        *found, *(out if each is None else each.contiguous() for each in (weight, bias)), *(running or (out, out)), out,
        eps, momentum, parts, clients,
        channels, weight is not None, bias is not None, running is not None, PARTS, block,
    )  # fmt: skip
    return Statistics(*out)


def fixed_statistics(
    mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Statistics:
    """Those of evaluation mode. As if they came from infinitely many values: no value of the batch changes them."""
    with torch.no_grad():
        inverse = torch.rsqrt(variance + eps)
        scale = inverse if weight is None else inverse * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        return Statistics(*torch.stack([mean, inverse, scale, shift, torch.full_like(inverse, math.inf)]))


class Gradients(NamedTuple):
    """Of a normalisation, K × C each. That of a value is slope · scale + value · factor + summand."""

    bias: Tensor
    weight: Tensor
    factor: Tensor
    summand: Tensor


def gradients(slope: Tensor, values: Tensor, of: Statistics, rectified: bool) -> Gradients:
    """`rectified`: `slope` is the gradient of the ReLU of the normalised values."""
    grid, part, block = _parts(values)
    (clients, parts, blocks), channels = grid, values.shape[2]
    found = torch.empty(2, clients, parts, channels, device=values.device)
    _slopes[grid](
        slope, values, of.mean, of.scale, of.shift, *found, values.shape[1], part, parts,
        channels, rectified, ROWS, block,
    )  # fmt: skip
    out = torch.empty(len(Gradients._fields), clients, channels, device=values.device)
    # The statistics follow each other in memory, and the mean is the first.
    _differentiate[(clients, blocks)](*found, of.mean, out, parts, clients, channels, PARTS, block)
    return Gradients(*out)


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


def normalised(values: Tensor, of: Statistics) -> Tensor:
    """values · scale + shift"""
    out = torch.empty_like(values)
    _scale[_blocks(values)](
        values, of.scale, of.shift, values, values, values, values, out, values[0].numel(), 1,
        values.shape[2], False, False, False, BLOCK, num_warps=8,
    )  # fmt: skip
    return out


def gradient_of_values(
    slope: Tensor, values: Tensor, mask: Tensor | None, of: Statistics, by: Gradients, rectified: bool
) -> Tensor:
    """slope · scale, plus value · factor + summand for real samples. `rectified` as in `gradients`."""
    out = torch.empty_like(slope)
    pixels = 1 if mask is None else values.shape[1] // mask.shape[1]
    _scale[_blocks(values)](
        slope, of.scale, by.summand, values, by.factor, of.shift, slope if mask is None else mask, out,
        values[0].numel(), pixels, values.shape[2], True, rectified, mask is not None, BLOCK, num_warps=8,
    )  # fmt: skip
    return out


def _blocks(values: Tensor) -> tuple[int, int]:
    """The grid of `_scale`: blocks of a client's values, and clients."""
    return triton.cdiv(values[0].numel(), BLOCK), len(values)


def _parts(values: Tensor) -> tuple[tuple[int, int, int], int, int]:
    """The grid (clients, parts of rows, blocks of channels), the rows of a part and the channels of a block."""
    clients, rows, channels = values.shape
    block = min(32, triton.next_power_of_2(channels))
    parts = max(1, min(triton.cdiv(rows, ROWS), MAX_PARTS // clients, PARTS))
    return (clients, parts, triton.cdiv(channels, block)), triton.cdiv(rows, parts), block
