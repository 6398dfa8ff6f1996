"""HalfCodec: float tensors cross in two bytes a value."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from undergrowth.exchange.codecs.pieces import Pieces, PiecesCodec


@dataclass(frozen=True)
class HalfCodec(PiecesCodec):
    """Values in `dtype` (torch.float16 or torch.bfloat16), rounded to the nearest.

    The largest float16 is 65504. Larger values arrive as infinity, and the server refuses the upload. Tensors that have
    two bytes a value or fewer pass unchanged.
    """

    dtype: torch.dtype

    @property
    def mark(self) -> str:
        return "fp16" if self.dtype is torch.float16 else "bf16"

    def split(self, tensor: Tensor) -> Pieces | None:
        return {"values": tensor.to(self.dtype)} if tensor.element_size() > self.dtype.itemsize else None

    def join(self, pieces: Pieces, _count: int) -> Tensor:
        return pieces["values"]
