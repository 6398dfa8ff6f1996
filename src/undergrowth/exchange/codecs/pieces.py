"""Tensors in pieces: how one tensor of a packet crosses as several, and is put together at the other end.

The codec marked `int8` sends a tensor `w` as `w#int8.codes`, `w#int8.scales` and `w#int8.form`. The form is a tensor
without values, with the original type and the shape (0, *original shape). It tells the other end what to rebuild and
weighs nothing, because names, types and shapes are not counted in any packet.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor

from undergrowth.core import Packet

FORM = "form"

Pieces = Mapping[str, Tensor]


class PiecesCodec(ABC):
    """The base of codecs that send every float tensor in pieces."""

    @property
    @abstractmethod
    def mark(self) -> str:
        """Part of the names of the pieces; every codec has its own."""

    @abstractmethod
    def split(self, tensor: Tensor) -> Pieces | None:
        """The pieces of a tensor, or None if it stays whole."""

    @abstractmethod
    def join(self, pieces: Pieces, count: int) -> Tensor:
        """The `count` values of a tensor in a row; `decode` restores shape and type."""

    def encode(self, packet: Packet) -> Packet:
        tensors: dict[str, Tensor] = {}
        for name, tensor in packet.tensors.items():
            if f"#{self.mark}." in name:
                raise ValueError(f"'{name}' looks like a piece made by the codec '{self.mark}': rename the tensor")
            # Forms of an earlier codec in a chain pass too: they are empty.
            pieces = self.split(tensor) if tensor.is_floating_point() and tensor.numel() else None
            if pieces is None:
                tensors[name] = tensor
            else:
                form = tensor.new_empty((0, *tensor.shape))
                tensors |= {f"{name}#{self.mark}.{piece}": value for piece, value in {**pieces, FORM: form}.items()}
        return Packet(tensors, packet.scalars, packet.tags)

    def decode(self, packet: Packet) -> Packet:
        """The packet with every tensor whole again, in the original order."""
        parts = {name: name.rpartition(f"#{self.mark}.") for name in packet.tensors}
        groups: dict[str, dict[str, Tensor]] = {}
        for name, (owner, separator, piece) in parts.items():
            if separator:
                groups.setdefault(owner, {})[piece] = packet.tensors[name]
        tensors: dict[str, Tensor] = {}
        for name, (owner, separator, _) in parts.items():
            if not separator:
                tensors[name] = packet.tensors[name]
            elif owner not in tensors:
                tensors[owner] = self._whole(owner, groups[owner])
        return Packet(tensors, packet.scalars, packet.tags)

    def _whole(self, name: str, pieces: Pieces) -> Tensor:
        try:
            form = pieces[FORM]
            shape = form.shape[1:]
            return self.join(pieces, math.prod(shape)).to(form.dtype).reshape(shape)
        except (KeyError, IndexError, RuntimeError) as error:
            # Only a packet that this codec did not make gets here; the server refuses it with this message.
            problem = f"'{name}' cannot be put together from the pieces of codec '{self.mark}' that came"
            raise ValueError(problem) from error
