"""TopK: of every float tensor only the largest values cross, with their places."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from undergrowth.core import Packet
from undergrowth.links.pieces import Pieces, put_together, take_apart

_MARK = "topk"


@dataclass(frozen=True)
class TopK:
    """The `share` of each tensor's values that are largest in magnitude, at least one; the rest arrive as zeros.

    Every value kept brings a place of four bytes, so of float32 a share above a half weighs more than the whole. A
    tensor of which all would be kept passes unchanged. Not-a-number counts as largest, so it is kept and seen.
    """

    share: float

    def encode(self, packet: Packet) -> Packet:
        return take_apart(packet, _MARK, self._split)

    def decode(self, packet: Packet) -> Packet:
        return put_together(packet, _MARK, self._join)

    def _split(self, tensor: Tensor) -> Pieces | None:
        row = tensor.flatten()
        kept = max(1, round(self.share * row.numel()))
        if kept >= row.numel():
            return None
        # Left in order of magnitude: a quantiser after this one then finds values of like size in each block.
        places = row.abs().topk(kept).indices
        narrow = row.numel() <= 2**31
        return {"values": row[places], "places": places.to(torch.int32) if narrow else places}

    def _join(self, pieces: Pieces, count: int) -> Tensor:
        values = pieces["values"]
        return values.new_zeros(count).scatter(0, pieces["places"].long(), values)
