"""Asks and answers: what a node gives out to its children, and what comes back.

A network reorders, repeats, delays and loses messages, so both carry an id. A node takes the answer to an ask that is
still open, once, and ignores every other answer.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from undergrowth.core.packet import Packet


class AskId(NamedTuple):  # a tuple, because a simulation makes millions of them
    """Names one ask in the whole federation."""

    node: str  # the child that is asked: a device or a node
    round: int  # the round of the parent
    turn: int  # how often the child was asked before


class Ask(NamedTuple):
    """A packet for a child, which owes an answer with the same id."""

    id: AskId
    packet: Packet
    phase: int = 0  # of the parent's round

    @property
    def child(self) -> str:
        return self.id.node


class Partial(NamedTuple):
    """A partial result: uploads that a node below has checked and combined."""

    packet: Packet


class Lost(NamedTuple):
    """The child will not answer this ask."""

    reason: str


class Refused(NamedTuple):
    """The child answered with an upload that an engine or a link found unusable."""

    reason: str


class Answer(NamedTuple):
    """What became of an ask: an upload, a partial result, a loss or a refusal."""

    id: AskId
    content: Packet | Partial | Lost | Refused


class Receipt(StrEnum):
    """What a node did with an answer. Answers with the last three receipts were ignored."""

    TAKEN = "taken"
    LOST = "lost"
    REFUSED = "refused"
    REPEATED = "repeated"  # this ask was answered before
    LATE = "late"  # this ask was given up, or a newer one is open
    UNKNOWN = "unknown"  # this node never gave out such an ask
