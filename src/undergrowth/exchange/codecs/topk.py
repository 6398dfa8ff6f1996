"""TopKCodec: of each float tensor only the largest values cross, with their positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from undergrowth.exchange.codecs.pieces import Pieces, PiecesCodec


@dataclass(frozen=True)
class TopKCodec(PiecesCodec):
    """Keeps the `fraction` of a tensor's values with the largest magnitude, at least one; the others arrive as zeros.

    Each kept value needs four more bytes for its position, so for float32 a fraction above 0.5 takes more bytes than
    the whole tensor. A tensor of which all values would be kept passes unchanged. NaN counts as the largest magnitude,
    so that the other end notices it.
    """

    fraction: float

    @property
    def mark(self) -> str:
        return "topk"

    def split(self, tensor: Tensor) -> Pieces | None:
        row = tensor.flatten()
        kept = max(1, round(self.fraction * row.numel()))
        if kept >= row.numel():
            return None
        # In order of magnitude: the blocks of a quantiser after this codec then have values of similar size.
        positions = row.abs().topk(kept).indices
        narrow = row.numel() <= 2**31
        return {"values": row[positions], "places": positions.to(torch.int32) if narrow else positions}

    def join(self, pieces: Pieces, count: int) -> Tensor:
        values = pieces["values"]
        return values.new_zeros(count).scatter(0, pieces["places"].long(), values)
