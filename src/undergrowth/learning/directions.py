"""Directions: normal numbers that are the same bits on every CPU and GPU, for any number of threads, from any position.

The generator is counter-based: word number i of a stream is `mix(key + i·GAMMA)`, with the output function of
SplitMix64 (Steele, Lea and Flood 2014), and has the bits of four numbers. Only additions, multiplications, shifts and
logical operations on 64-bit integers are used, which are exact everywhere. A number is an entry of a table: the inverse
of the normal distribution function at the middle of each of 65,536 equally likely intervals, scaled to a variance of 1.
Logarithms and cosines, whose last digits differ between processors, are not needed. Compared with the normal
distribution, the kurtosis is 2.9992 instead of 3, and no number is larger than 4.33.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def signed(number: int) -> int:
    """The lowest 64 bits of a number, as a signed integer of torch."""
    return (number + 2**63) % 2**64 - 2**63


GAMMA, FIRST, SECOND = map(signed, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
LEVELS = 1 << 16  # of a number: a quarter of a word
PER_WORD = 4


def mix(words: Tensor) -> Tensor:
    """The output function of SplitMix64; the shifts fill with zeros."""
    words = (words ^ ((words >> 30) & ((1 << 34) - 1))) * FIRST
    words = (words ^ ((words >> 27) & ((1 << 37) - 1))) * SECOND
    return words ^ ((words >> 31) & ((1 << 33) - 1))


def derive(key: Tensor, number: int) -> Tensor:
    """The key of stream `number` of those that belong to `key`. Keys of any shape give as many keys."""
    return mix(key + signed((2 * number + 1) * SECOND))


def normals(key: Tensor, start: int, count: int) -> Tensor:
    """Numbers `start` to `start + count` of the stream of `key`; of K streams, K × `count`, if `key` has K keys.

    `start` is a multiple of 4.
    """
    first, last = start // PER_WORD, -(-(start + count) // PER_WORD)
    words = torch.arange(first, last, device=key.device) * GAMMA + key.unsqueeze(-1)
    index = mix(words).view(torch.int16)[..., :count].int() & (LEVELS - 1)
    # In a price, every use counts the memory of the table.
    numbers = torch.empty(LEVELS, device="meta") if key.is_meta else table(key.device)
    return numbers.index_select(0, index.flatten()).view(index.shape)


@cache
def table(torch_device: torch.device) -> Tensor:
    """The numbers by their 16 bits. No entry is so close to the middle of two floats that rounding could differ.

    Every entry is at least 1e-12 of its size away from such a middle, and float64 arithmetic errs by 1e-15.
    """
    middles = (torch.arange(LEVELS // 2, dtype=torch.float64) + 0.5) / LEVELS
    lower = torch.special.ndtri(middles)
    lower /= lower.square().mean().sqrt()
    return torch.cat([lower, -lower.flip(0)]).float().to(torch_device)
