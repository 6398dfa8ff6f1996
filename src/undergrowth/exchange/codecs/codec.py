"""Codec: what a packet becomes on a link, and back; and a chain of codecs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from undergrowth.core import Packet


class Codec(Protocol):
    """Two mirrored functions. Integers, booleans, empty tensors, scalars and tags pass unchanged.

    `encode` returns an ordinary packet, so whatever can carry a packet can carry it, and the ledger books its `nbytes`.
    They depend on shapes and types only: a packet of meta tensors weighs the same.
    """

    def encode(self, packet: Packet) -> Packet:
        """What crosses the link."""
        ...

    def decode(self, packet: Packet) -> Packet:
        """What the other end gets: names, shapes and types are those of the original packet."""
        ...


@dataclass(frozen=True)
class ChainCodec:
    """One codec after another: each encodes the float tensors that the previous one made.

    A codec that adds scales must be the last, because a codec after it would encode the scales too.
    """

    codecs: tuple[Codec, ...]

    def encode(self, packet: Packet) -> Packet:
        for codec in self.codecs:
            packet = codec.encode(packet)
        return packet

    def decode(self, packet: Packet) -> Packet:
        for codec in reversed(self.codecs):
            packet = codec.decode(packet)
        return packet
