"""Directions: normal numbers that are the same bits on every CPU and GPU, for any number of threads, from any position.

The generator is counter-based: word number i of a stream is `mix(key + i·GAMMA)`, with the output function of
SplitMix64 (Steele, Lea and Flood 2014), and has the bits of four numbers. Only additions, multiplications, shifts and
logical operations on 64-bit integers are used, which are exact everywhere. A number is an entry of a table: the inverse
of the normal distribution function at the middle of each of 65,536 equally likely intervals, scaled to a variance of 1.
Logarithms and cosines, whose last digits differ between processors, are not needed. Compared with the normal
distribution, the kurtosis is 2.9992 instead of 3, and no number is larger than 4.33.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor


def signed(number: int) -> int:
    """The lowest 64 bits of a number, as a signed integer of torch."""
    return (number + 2**63) % 2**64 - 2**63


GAMMA, FIRST, SECOND = map(signed, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
LEVELS = 1 << 16  # of a number: a quarter of a word
PER_WORD = 4


def mix(words: Tensor) -> Tensor:
    """The output function of SplitMix64."""
    words = _fold(words, 30).mul_(FIRST)
    words = _fold(words, 27).mul_(SECOND)
    return _fold(words, 31)


def _fold(words: Tensor, bits: int) -> Tensor:
    """words ^ (words >> bits), where the shift fills with zeros."""
    return (words >> bits).bitwise_and_((1 << (64 - bits)) - 1).bitwise_xor_(words)


def derive(key: Tensor, number: int) -> Tensor:
    """The key of stream `number` of those that belong to `key`. Keys of any shape give as many keys."""
    return mix(key + signed((2 * number + 1) * SECOND))


def streams(key: Tensor, count: int) -> Tensor:
    """The keys of streams 0 to `count` of those that belong to `key`, in a new last dimension."""
    return mix(key.unsqueeze(-1) + (2 * torch.arange(count, device=key.device) + 1) * SECOND)


class Piece(NamedTuple):
    """Numbers `start` to `stop` of a stream. `start` is a multiple of 4."""

    stream: int
    start: int
    stop: int


class Pieces:
    """Pieces of streams whose numbers are generated together, in as few operations as those of a single piece."""

    def __init__(self, pieces: Sequence[Piece], torch_device: torch.device) -> None:
        self.pieces = pieces
        sizes = [piece.stop - piece.start for piece in pieces]
        words = [-(-size // PER_WORD) for size in sizes]
        places = list(accumulate(words, initial=0))
        self._count = places.pop()
        # The last word of a piece may have numbers that the piece does not need.
        self._sizes = [part for size in sizes for part in (size, -size % PER_WORD)]
        # Word number i of the pieces is word number i + start / 4 − place of the stream.
        skipped = [piece.start // PER_WORD - place for piece, place in zip(pieces, places, strict=True)]
        self._streams = torch.tensor([piece.stream for piece in pieces], device=torch_device)
        self._words = torch.tensor(words, device=torch_device)
        self._skipped = torch.tensor([signed(count * GAMMA) for count in skipped], device=torch_device)

    def normals(self, keys: Tensor) -> Tensor:
        """The numbers, one piece after the other. `keys`: K × streams; the result has K rows."""
        index = self._mixed_words(keys).view(torch.int16).int().bitwise_and_(LEVELS - 1)
        # In a price, every use counts the memory of the table.
        numbers = torch.empty(LEVELS, device="meta") if keys.is_meta else table(keys.device)
        return numbers.index_select(0, index.flatten()).view(index.shape)

    def _mixed_words(self, keys: Tensor) -> Tensor:
        words = keys.index_select(1, self._streams).add_(self._skipped)
        if len(self.pieces) > 1:
            words = words.repeat_interleave(self._words, 1, output_size=self._count)
        return mix(words + torch.arange(self._count, device=keys.device).mul_(GAMMA))

    def split(self, numbers: Tensor) -> tuple[Tensor, ...]:
        """The parts of what `normals` returns, or of a multiple of it, that belong to the pieces."""
        return torch.split(numbers, self._sizes, -1)[::2]


def divide(sizes: Iterable[tuple[int, int]], most: int, torch_device: torch.device) -> Iterator[Pieces]:
    """All numbers of some streams, at most `most` at a time (a multiple of 4). `sizes`: streams and their numbers.

    Small streams are generated together, and large ones in several pieces.
    """
    pieces: list[Piece] = []
    room = most
    for stream, size in sizes:
        start = 0
        while start < size:
            stop = min(size, start + room)
            pieces.append(Piece(stream, start, stop))
            room -= -(-(stop - start) // PER_WORD) * PER_WORD
            start = stop
            if not room:
                yield Pieces(pieces, torch_device)
                pieces, room = [], most
    if pieces:
        yield Pieces(pieces, torch_device)


@cache
def divide_once(sizes: tuple[tuple[int, int], ...], most: int, torch_device: torch.device) -> list[Pieces]:
    """What `divide` gives, kept for the next time. A recorded step of a GPU refers to it, so it is never deleted."""
    return list(divide(sizes, most, torch_device))


@cache
def table(torch_device: torch.device) -> Tensor:
    """The numbers by their 16 bits. No entry is so close to the middle of two floats that rounding could differ.

    Every entry is at least 1e-12 of its size away from such a middle, and float64 arithmetic errs by 1e-15.
    """
    middles = (torch.arange(LEVELS // 2, dtype=torch.float64) + 0.5) / LEVELS
    lower = torch.special.ndtri(middles)
    lower /= lower.square().mean().sqrt()
    return torch.cat([lower, -lower.flip(0)]).float().to(torch_device)
