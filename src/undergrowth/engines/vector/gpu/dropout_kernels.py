"""A Triton kernel for dropout: the mask is computed from keys where it is needed, and never stored."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from undergrowth.core.dropout import threshold

BLOCK = 1024  # values per program


@triton.jit
def _drop(x, keys, out, total, pixels, threshold, scale, channels: tl.constexpr, BLOCK: tl.constexpr):
    """The arithmetic of `undergrowth.core.dropout`, on unsigned integers; x: samples × pixels × channels."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < total
    sample = at // (pixels * channels)
    inside = (at % (pixels * channels)).to(tl.int32)
    number = inside % channels * pixels + inside // channels  # of the value if channels come first
    word = tl.load(keys + sample, mask=there, other=0).to(tl.uint32) + (number // 2).to(tl.uint32) * 0x9E3779B9
    word = (word ^ (word >> 16)) * 0x85EBCA6B
    word = (word ^ (word >> 13)) * 0xC2B2AE35
    word = word ^ (word >> 16)
    half = (word >> ((number % 2) * 16).to(tl.uint32)) & 0xFFFF
    kept = (half ^ 0x8000).to(tl.int32) >= threshold  # ^ 0x8000: the order of signed numbers
    value = tl.load(x + at, mask=there, other=0.0)
    tl.store(out + at, (value.to(tl.float32) * tl.where(kept, scale, 0.0)).to(value.dtype), mask=there)


def drop(values: Tensor, keys: Tensor, p: float) -> Tensor:
    """Dropout of samples × pixels × channels, or of samples × values. `keys`: one of 32 bits for each sample."""
    out = torch.empty_like(values)
    channels = values.shape[-1] if values.dim() == 3 else 1
    pixels = values[0].numel() // channels
    scale = float(torch.tensor(1 / (1 - p), dtype=values.dtype))  # rounded as the mask would be
    _drop[(triton.cdiv(values.numel(), BLOCK),)](
        values, keys, out, values.numel(), pixels, threshold(p), scale, channels, BLOCK
    )
    return out
