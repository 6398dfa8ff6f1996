"""Links: the codecs of a run, one for each direction between a server and its devices."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from undergrowth.core import InputError, Packet, State, Weights, nearest
from undergrowth.links.codec import Codec, Plain
from undergrowth.links.link import Link
from undergrowth.links.parse import FORMATS, codec

DOWN = ("none", *FORMATS)


class Links:
    """What devices and servers send each other, as it arrives. Between servers everything crosses as it is."""

    def __init__(self, up: str = "none", down: str = "none", feedback: bool = True) -> None:
        try:
            self._up = Link(codec(up), feedback)
        except InputError as error:
            raise InputError(f"links.up: {error}") from None
        if down.startswith("topk"):
            raise InputError(f"links.down '{down}': no model survives it; write {', '.join(DOWN)}")
        if down not in DOWN:
            raise InputError(f"links.down '{down}' is not known; {nearest(down, DOWN)}")
        self._down: Codec = codec(down)
        self._latest: tuple[Packet, Packet, int] | None = None

    def down(self, packet: Packet) -> tuple[Packet, int]:
        """What a device gets, and how many bytes that took."""
        # A server sends one packet to many devices: it is encoded once.
        if self._latest is None or self._latest[0] is not packet:
            encoded = self._down.encode(packet)
            arrived = packet if isinstance(self._down, Plain) else self._down.decode(encoded)
            self._latest = (packet, arrived, encoded.nbytes)
        return self._latest[1:]

    def up(self, packet: Packet, reference: Weights, residual: State) -> tuple[Packet, int, State]:
        """What the server gets, how many bytes that took, and what the device remembers of what was lost."""
        encoded, residual = self._up.send(packet, reference, residual)
        arrived = self._up.receive(encoded, reference)
        if arrived is not packet:
            arrived = replace(
                arrived, tensors={k: _as_signed(v, packet.tensors[k]) for k, v in arrived.tensors.items()}
            )
        return arrived, encoded.nbytes, residual

    def weigh(self, packet: Packet) -> int:
        """The bytes of an upload."""
        return self._up.codec.encode(packet).nbytes


def _as_signed(arrived: Tensor, sent: Tensor) -> Tensor:
    """Without negative values where none was sent: a variance that a codec has made negative would spoil the model.

    That none was is one bit for a tensor, which is not counted.
    """
    if not arrived.is_floating_point() or not arrived.numel():
        return arrived
    return torch.where((sent >= 0).all(), arrived.clamp_min(0), arrived)  # a GPU need not be waited for
