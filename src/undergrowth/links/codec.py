"""Codec: what a packet becomes on a link, and back; and the two codecs that change nothing themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from undergrowth.core import Packet


class Codec(Protocol):
    """Two mirrored functions. Integer and truth values, empty tensors, scalars and tags pass unchanged.

    What `encode` makes is a packet like any other, so whatever can carry a packet can carry it, and its `nbytes` are
    what the ledger books. They depend on shapes and types only: a packet of meta tensors weighs the same.
    """

    def encode(self, packet: Packet) -> Packet:
        """What crosses the link."""
        ...

    def decode(self, packet: Packet) -> Packet:
        """What the other end gets: the same names, shapes and types as went in."""
        ...


@dataclass(frozen=True)
class Plain:
    """Everything crosses as it is."""

    def encode(self, packet: Packet) -> Packet:
        return packet

    def decode(self, packet: Packet) -> Packet:
        return packet


@dataclass(frozen=True)
class Chain:
    """One codec after another: each encodes the float tensors that the one before it made.

    Only the last may be one that adds scales, since a codec after it would work on the scales, not on the values.
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
