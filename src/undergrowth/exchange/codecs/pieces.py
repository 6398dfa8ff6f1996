"""Tensors in pieces: how one tensor of a packet crosses as several, and is put together at the other end.

The codec marked `int8` sends a tensor `w` as `w#int8.codes`, `w#int8.scales` and `w#int8.form`. The form is a tensor
without values, with the original type and the shape (0, *original shape). It tells the other end what to rebuild and
weighs nothing, because names, types and shapes are not counted in any packet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from torch import Tensor

from undergrowth.core import Packet

FORM = "form"

Pieces = Mapping[str, Tensor]


def take_apart(packet: Packet, mark: str, split: Callable[[Tensor], Pieces | None]) -> Packet:
    """The packet with every float tensor replaced by its pieces; a tensor stays whole if `split` returns None."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in packet.tensors.items():
        if _prefix("", mark) in name:
            raise ValueError(f"'{name}' looks like a piece made by the codec '{mark}': rename the tensor")
        # Forms of an earlier codec in a chain pass too: they are empty.
        pieces = split(tensor) if tensor.is_floating_point() and tensor.numel() else None
        if pieces is None:
            tensors[name] = tensor
        else:
            form = tensor.new_empty((0, *tensor.shape))
            tensors |= {_prefix(name, mark) + piece: value for piece, value in {**pieces, FORM: form}.items()}
    return Packet(tensors, packet.scalars, packet.tags)


def put_together(packet: Packet, mark: str, join: Callable[[Pieces, int], Tensor]) -> Packet:
    """The packet with every tensor whole again, in the original order.

    `join` gets the pieces and the number of values and returns the values in a row; this function restores shape and
    type.
    """
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in packet.tensors.items():
        owner, separator, piece = name.rpartition(_prefix("", mark))
        if separator:
            groups.setdefault(owner, {})[piece] = tensor
    tensors: dict[str, Tensor] = {}
    for name, tensor in packet.tensors.items():
        owner, separator, _ = name.rpartition(_prefix("", mark))
        if not separator:
            tensors[name] = tensor
        elif owner not in tensors:
            tensors[owner] = _whole(owner, groups[owner], mark, join)
    return Packet(tensors, packet.scalars, packet.tags)


def _whole(name: str, pieces: Pieces, mark: str, join: Callable[[Pieces, int], Tensor]) -> Tensor:
    try:
        form = pieces[FORM]
        shape = form.shape[1:]
        return join(pieces, math.prod(shape)).to(form.dtype).reshape(shape)
    except (KeyError, IndexError, RuntimeError) as error:
        # Only a packet that this codec did not make gets here; the server refuses it with this message.
        raise ValueError(f"'{name}' cannot be put together from the pieces of codec '{mark}' that came") from error


def _prefix(name: str, mark: str) -> str:
    return f"{name}#{mark}."
