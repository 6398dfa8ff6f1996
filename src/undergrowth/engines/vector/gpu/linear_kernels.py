"""A Triton kernel for large linear layers: the backward pass and the update, reading every weight once.

Reading the weights takes most of the time of such a layer. Torch reads them for the gradient of the inputs, and again
for the update.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_SAMPLES = {True: 64, False: 32}  # of a client's batch, with TF32 and without; beyond that torch is faster


@triton.jit
def _descend(
    slope, rows, weight, out, lr, samples, inputs, outputs,
    wanted: tl.constexpr, precision: tl.constexpr,
    SAMPLES: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """out = slope · weight, and weight −= lr · slopeᵀ · rows, for some inputs of one client."""
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * INPUTS + tl.arange(0, INPUTS)
    sample = tl.arange(0, SAMPLES)
    here = (sample < samples)[:, None] & (at < inputs)[None, :]
    place = (client * samples + sample[:, None]) * inputs + at[None, :]
    row = tl.load(rows + place, mask=here, other=0.0)
    total = tl.zeros((SAMPLES, INPUTS), dtype=tl.float32)
    for first in range(0, outputs, OUTPUTS):
        output = first + tl.arange(0, OUTPUTS)
        there = (sample < samples)[:, None] & (output < outputs)[None, :]
        gradient = tl.load(slope + (client * samples + sample[:, None]) * outputs + output[None, :], there, other=0.0)
        inside = (output < outputs)[:, None] & (at < inputs)[None, :]
        tile = weight + (client * outputs + output[:, None]) * inputs + at[None, :]
        value = tl.load(tile, mask=inside, other=0.0)
        if wanted:
            total = tl.dot(gradient, value, total, input_precision=precision)
        tl.store(tile, value - lr * tl.dot(tl.trans(gradient), row, input_precision=precision), mask=inside)
    if wanted:
        tl.store(out + place, total, mask=here)


def can_descend(rows: Tensor, weight: Tensor) -> bool:
    few = rows.shape[1] <= MAX_SAMPLES[torch.backends.cuda.matmul.allow_tf32]
    return few and weight.is_contiguous() and rows.dtype == weight.dtype == torch.float32


def descend(slope: Tensor, rows: Tensor, weight: Tensor, lr: float, wanted: bool) -> Tensor | None:
    """Updates `weight` (K × O × I) in place; returns slope · weight if `wanted`. slope: K × B × O, rows: K × B × I."""
    slope, rows = slope.contiguous(), rows.contiguous()
    clients, samples, inputs = rows.shape
    out = torch.empty_like(rows) if wanted else None
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"
    _descend[(triton.cdiv(inputs, 64), clients)](
        slope, rows, weight, rows if out is None else out, lr, samples, inputs, weight.shape[1],
        wanted, precision, max(16, triton.next_power_of_2(samples)), 64, 32, num_warps=2, num_stages=3,
    )  # fmt: skip
    return out
