"""Half: float tensors cross in two bytes a value."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from undergrowth.core import Packet
from undergrowth.links.pieces import Pieces, put_together, take_apart


@dataclass(frozen=True)
class Half:
    """Values in `dtype`, torch.float16 or torch.bfloat16, rounded to the nearest.

    float16 ends at 65504: what is larger arrives infinite, so that the server refuses it instead of averaging a
    value that was never there. Tensors that are as narrow already pass unchanged.
    """

    dtype: torch.dtype

    def encode(self, packet: Packet) -> Packet:
        return take_apart(packet, self._mark, self._split)

    def decode(self, packet: Packet) -> Packet:
        return put_together(packet, self._mark, self._join)

    @property
    def _mark(self) -> str:
        return "fp16" if self.dtype is torch.float16 else "bf16"

    def _split(self, tensor: Tensor) -> Pieces | None:
        return {"values": tensor.to(self.dtype)} if tensor.element_size() > self.dtype.itemsize else None

    def _join(self, pieces: Pieces, _count: int) -> Tensor:
        return pieces["values"]
