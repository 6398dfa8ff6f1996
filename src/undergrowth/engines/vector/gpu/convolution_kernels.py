"""Triton kernels: convolutions with different weights for every client.

A convolution is a matrix product over patches. Here the patches are never written to memory: each tile of the product
reads its values from the maps, which are in channels-last layout, so that a patch is a few long runs of memory. The
patches of a 5×5 convolution would be 25 times the size of the maps, and moving them would take most of the time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from undergrowth.engines.vector.gpu.norm_kernels import survey

BLOCK = 1024  # values per program of an elementwise kernel
MAX_PROGRAMS = 1056  # that keep a large GPU busy: eight for each of its processors


@triton.jit
def _multiply(
    maps, matrix, bias, of_maps, of_matrix, out, rows, high, wide, out_high, out_wide, samples,
    channels: tl.constexpr, outputs: tl.constexpr, size: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr,
    backward: tl.constexpr, biased: tl.constexpr, scaled: tl.constexpr, precision: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """out[row, o] = Σ patch(row)[t] · matrix[o, t]: a row is a pixel of the result, t a tap and a channel of it.

    backward: `maps` are the gradients of the outputs, and the result those of the inputs.
    scaled: inputs are pre-scaled; each client has one scale per operand.
    """
    taps: tl.constexpr = size * size * channels
    client = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(2) * OUTPUTS + tl.arange(0, OUTPUTS)
    there = row < rows
    sample = row // (out_high * out_wide)
    if backward:
        top = row // out_wide % out_high + padding
        left = row % out_wide + padding
    else:
        top = row // out_wide % out_high * stride - padding
        left = row % out_wide * stride - padding
    maps += client * samples * high * wide * channels
    matrix += client * outputs * taps
    total = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    for first in range(0, taps, TAPS):
        tap = first + tl.arange(0, TAPS)
        place = tap // channels
        channel = tap % channels
        if backward:
            at_row = top[:, None] - (place // size)[None, :]
            at_column = left[:, None] - (place % size)[None, :]
            inside = (at_row % stride == 0) & (at_column % stride == 0) & (at_row >= 0) & (at_column >= 0)
            at_row = at_row // stride
            at_column = at_column // stride
        else:
            at_row = top[:, None] + (place // size)[None, :]
            at_column = left[:, None] + (place % size)[None, :]
            inside = (at_row >= 0) & (at_column >= 0)
        inside &= (at_row < high) & (at_column < wide) & there[:, None] & (tap < taps)[None, :]
        source = ((sample[:, None] * high + at_row) * wide + at_column) * channels + channel[None, :]
        patch = tl.load(maps + source, mask=inside, other=0.0)
        weights = tl.load(
            matrix + output[None, :] * taps + tap[:, None],
            mask=(output < outputs)[None, :] & (tap < taps)[:, None],
            other=0.0,
        )
        total = tl.dot(patch, weights, total, input_precision=precision)
    if scaled:
        total = total * tl.load(of_maps + client) * tl.load(of_matrix + client)
    if biased:
        total += tl.load(bias + client * outputs + output, mask=output < outputs, other=0.0)[None, :]
    to = (client * rows + row[:, None]) * outputs + output[None, :]
    tl.store(out + to, total.to(out.dtype.element_ty), mask=there[:, None] & (output < outputs)[None, :])


@triton.jit
def _gather(
    maps, slope, of_maps, of_slope, out, rows, high, wide, out_high, out_wide, samples, clients, part,
    channels: tl.constexpr, outputs: tl.constexpr, size: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr,
    scaled: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, RUNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """out[t, o] = Σ patch(row)[t] · slope[row, o], the gradient of the weights, over one part of the rows.

    A tap and CHANNELS of its channels are one run of memory. The address of a run is computed once for its channels.
    scaled: inputs are pre-scaled; each client has one scale per operand.
    """
    runs: tl.constexpr = channels // CHANNELS  # of a tap
    client = (tl.program_id(1) % clients).to(tl.int64)
    piece = tl.program_id(1) // clients
    run = tl.program_id(0) * RUNS + tl.arange(0, RUNS)
    place = run // runs
    inner = (run % runs * CHANNELS)[:, None] + tl.arange(0, CHANNELS)[None, :]
    output = tl.program_id(2) * OUTPUTS + tl.arange(0, OUTPUTS)
    maps += client * samples * high * wide * channels
    slope += client * rows * outputs
    last = tl.minimum(rows, (piece + 1) * part)
    total = tl.zeros((RUNS * CHANNELS, OUTPUTS), dtype=tl.float32)
    for first in range(piece * part, last, ROWS):
        row = first + tl.arange(0, ROWS)
        there = row < last
        at_row = (row // out_wide % out_high * stride - padding)[:, None] + (place // size)[None, :]
        at_column = (row % out_wide * stride - padding)[:, None] + (place % size)[None, :]
        inside = (at_row >= 0) & (at_row < high) & (at_column >= 0) & (at_column < wide)
        inside &= there[:, None] & (place < size * size)[None, :]
        source = ((row // (out_high * out_wide) * high)[:, None] + at_row) * wide + at_column
        patch = tl.load(
            maps + (source * channels)[:, :, None] + inner[None, :, :],
            mask=tl.broadcast_to(inside[:, :, None], (ROWS, RUNS, CHANNELS)), other=0.0,
        )  # fmt: skip
        real = there[:, None] & (output < outputs)[None, :]
        slopes = tl.load(slope + row[:, None] * outputs + output[None, :], mask=real, other=0.0)
        patch = tl.reshape(patch, (ROWS, RUNS * CHANNELS))
        total = tl.dot(tl.trans(patch), slopes, total, input_precision="ieee")
    if scaled:
        total = total * tl.load(of_maps + client) * tl.load(of_slope + client)
    tap = tl.program_id(0) * RUNS * CHANNELS + tl.arange(0, RUNS * CHANNELS)
    to = ((piece * clients + client) * (size * size * channels) + tap[:, None]) * outputs + output[None, :]
    tl.store(out + to, total, mask=(tap < size * size * channels)[:, None] & (output < outputs)[None, :])


@triton.jit
def _add_up(
    parts, out, count, total, pieces, outputs, channels, places, BLOCK: tl.constexpr, PIECES: tl.constexpr
):  # fmt: skip
    """Adds up the pieces of `_gather`, taps × C × O, and writes the sums in the layout of the weights: O × C × taps."""
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    value = tl.zeros((PIECES, BLOCK), dtype=tl.float32)
    for first in range(0, pieces, PIECES):
        piece = first + tl.arange(0, PIECES)
        source = piece[:, None] * total + client * count + at[None, :]
        value += tl.load(parts + source, mask=(piece < pieces)[:, None] & there[None, :], other=0.0)
    output = at % outputs
    channel = at // outputs % channels
    to = (output * channels + channel) * places + at // outputs // channels
    tl.store(out + client * count + to, tl.sum(value, 0), mask=there)


@triton.jit
def _arrange(
    weight, largest, forward, backward, unit, count, parts, outputs, channels, places,
    scaled: tl.constexpr, both: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Writes weights (O × C × taps) as the matrices of both passes: O × taps × C, and C × taps × O if `both`."""
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    value = tl.load(weight + client * count + at, mask=there)
    if scaled:
        piece = tl.arange(0, PARTS)
        one = _unit(tl.max(tl.load(largest + client * parts + piece, mask=piece < parts, other=0), 0))
        value = value / one
        tl.store(unit + client, one)
    place = at % places
    channel = at // places % channels
    output = at // places // channels
    value = value.to(forward.dtype.element_ty)
    tl.store(forward + client * count + (output * places + place) * channels + channel, value, mask=there)
    if both:
        tl.store(backward + client * count + (channel * places + place) * outputs + output, value, mask=there)


@triton.jit
def _unit(bits):
    """The power of two by which values are divided so that the largest, given as float bits, becomes 2^14 to 2^15.

    NaN and infinity stay as they are.
    """
    return ((tl.maximum(bits >> 23, 15) - 14) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _shorten(values, largest, out, unit, count, parts, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    """Divides every value by its client's unit, a power of two, and rounds it to float16 (ten mantissa bits)."""
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    piece = tl.arange(0, PARTS)
    one = _unit(tl.max(tl.load(largest + client * parts + piece, mask=piece < parts, other=0), 0))
    value = tl.load(values + client * count + at, mask=at < count) / one
    tl.store(out + client * count + at, value.to(tl.float16), mask=at < count)
    tl.store(unit + client, one)


class Short(NamedTuple):
    """Values divided by a unit; without a unit, the values themselves."""

    values: Tensor
    unit: Tensor | None = None  # one per client


def shortened(values: Tensor, clients: int, largest: Tensor | None = None) -> Short:
    """Where TF32 is allowed, the values as float16 with as many mantissa bits, scaled by one unit per client.

    The unit puts a client's largest value near the end of the range of float16. A product then takes half to two thirds
    as long. The gradient of weights sums over rows, which a matrix unit needs contiguous unless values have 16 bits.

    `largest`: as returned by `survey`.
    """
    if values.dtype != torch.float32 or not torch.backends.cuda.matmul.allow_tf32:
        return Short(values)
    count = values.numel() // clients
    if largest is None:
        largest = _largest(values.reshape(clients, count))
    short, unit = torch.empty_like(values, dtype=torch.float16), torch.empty(clients, device=values.device)
    parts = largest.shape[1]
    _shorten[(triton.cdiv(count, 4 * BLOCK), clients)](
        values, largest, short, unit, count, parts, 4 * BLOCK, _tile(parts), num_warps=8
    )
    return Short(short, unit)


def arranged(weight: Tensor, dtype: torch.dtype, both: bool) -> tuple[Short, Short]:
    """The matrices of a convolution's forward and backward pass, K × O × s·s·C and, if `both`, K × C × s·s·O.

    In float16 they are scaled by one unit per client, as `shortened` maps are. weight: K × O × C × s × s.
    """
    clients, outputs, channels, size, _ = weight.shape
    weight = weight.contiguous()
    count, places, scaled = weight[0].numel(), size * size, dtype == torch.float16
    shapes = (outputs, places * channels), (channels, places * outputs)
    forward, backward = (torch.empty(clients, *shape, device=weight.device, dtype=dtype) for shape in shapes)
    unit = torch.empty(clients, device=weight.device) if scaled else None
    largest = _largest(weight.reshape(clients, count)) if scaled else None
    parts = 1 if largest is None else largest.shape[1]
    _arrange[(triton.cdiv(count, BLOCK), clients)](
        weight, weight if largest is None else largest, forward, backward, weight if unit is None else unit,
        count, parts, outputs, channels, places, scaled, both, BLOCK, _tile(parts),
    )  # fmt: skip
    return Short(forward, unit), Short(backward, unit)


def _largest(values: Tensor) -> Tensor:
    """The largest magnitudes of parts of the values, K × count, as float bits."""
    columns = 32 if values.shape[1] % 32 == 0 else 1
    return survey(values.reshape(len(values), -1, columns))[1]


def _tile(parts: int) -> int:
    """Nearly always 256: every other size is compiled again."""
    return max(256, int(triton.next_power_of_2(parts)))


def multiply(
    maps: Short, matrix: Short, bias: Tensor | None, shape: tuple[int, int], size: int, stride: int, padding: int,
    backward: bool = False,
) -> Tensor:  # fmt: skip
    """The convolution, N × H' × W' × O with `shape` (H', W'). maps: N × H × W × C, matrix: K × O × s·s·C."""
    (values, of_maps), (weights, of_matrix) = maps, matrix
    samples, high, wide, channels = values.shape
    clients, outputs, _ = weights.shape
    weights, bias = weights.contiguous(), None if bias is None else bias.contiguous()
    scaled = of_maps is not None
    dtype = torch.float32 if scaled else values.dtype
    out = torch.empty(samples, *shape, outputs, device=values.device, dtype=dtype)
    rows = samples // clients * shape[0] * shape[1]
    # Adjacent values belong to one tap of the window: a tile has at most as many columns as there are channels.
    deep = 64 if channels >= 64 and values.element_size() == 2 else 16 if channels == 16 else 32
    tall, block = 128, _block(outputs, 128)
    # Three TF32 products are as exact as one in float32, and five times as fast.
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"
    _multiply[(triton.cdiv(rows, tall), clients, triton.cdiv(outputs, block))](
        values, weights, weights if bias is None else bias, of_maps if scaled else out, of_matrix if scaled else out,
        out, rows, high, wide, *shape, samples // clients,
        channels, outputs, size, stride, padding, backward, bias is not None, scaled, precision, tall, block, deep,
        num_warps=4 if block <= 64 else 8, num_stages=4 if deep == 16 else 3,
    )  # fmt: skip
    return out


def gather(maps: Short, slope: Short, clients: int, size: int, stride: int, padding: int) -> Tensor:
    """The gradient of the weights, K × O × C × s × s. maps: N × H × W × C, slope: N × H' × W' × O."""
    (values, of_maps), (slopes, of_slope) = maps, slope
    samples, high, wide, channels = values.shape
    _, out_high, out_wide, outputs = slopes.shape
    rows, taps = samples // clients * out_high * out_wide, size * size * channels
    tall, block, deep = 128 if values.element_size() == 2 else 64, _block(outputs, 64), _block(taps, 64)
    inner = min(channels & -channels, deep)  # channels of a run: a power of two that divides all
    programs = clients * triton.cdiv(taps, deep) * triton.cdiv(outputs, block)
    pieces = max(1, min(64, MAX_PROGRAMS // programs, rows // (4 * tall)))
    part = triton.cdiv(triton.cdiv(rows, pieces), tall) * tall
    parts = torch.empty(pieces, clients, taps, outputs, device=values.device)
    scaled = of_maps is not None
    # With more channels, the memory of several stages would leave room for too few programs at a time.
    _gather[(triton.cdiv(taps, deep), clients * pieces, triton.cdiv(outputs, block))](
        values, slopes, of_maps if scaled else parts, of_slope if scaled else parts,
        parts, rows, high, wide, out_high, out_wide, samples // clients, clients, part,
        channels, outputs, size, stride, padding, scaled, tall, block, deep // inner, inner,
        num_warps=4, num_stages=3 if channels <= 32 else 1,
    )  # fmt: skip
    # In a fixed order, unlike atomic additions, so that the bits are the same every time.
    weight = torch.empty(clients, outputs, channels, size, size, device=values.device)
    count = taps * outputs
    block = BLOCK // 8
    _add_up[(triton.cdiv(count, block), clients)](
        parts, weight, count, clients * count, pieces, outputs, channels, size * size, block, 8
    )
    return weight


def _block(count: int, most: int) -> int:
    """The side of a tile: a power of two, at least 16, the minimum of a matrix unit."""
    return max(16, min(most, int(triton.next_power_of_2(count))))
