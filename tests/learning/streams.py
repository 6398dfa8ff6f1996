"""Numbers of a single stream, for tests that compare directions with formulas."""

from __future__ import annotations

from torch import Tensor

from undergrowth.learning.directions import Piece, Pieces


def normals(key: Tensor, start: int, count: int) -> Tensor:
    """Numbers `start` to `start + count` of the stream of `key`; of K streams, K × `count`, if `key` has K keys."""
    pieces = Pieces([Piece(0, start, start + count)], key.device)
    (found,) = pieces.split(pieces.normals(key.reshape(-1, 1)))
    return found.reshape(*key.shape, count)
