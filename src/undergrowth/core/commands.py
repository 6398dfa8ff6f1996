"""Commands: what a node tells its driver to do, beside giving out an ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from undergrowth.core.asks import Answer, Ask, AskId


class Drop(NamedTuple):
    """The node no longer waits for the answer to this ask."""

    id: AskId


class Deadline(NamedTuple):
    """Call `expire(round, phase)` after that many seconds."""

    round: int
    seconds: float
    phase: int = 0


@dataclass(frozen=True)
class RoundEnd:
    """What a round was made of. A round without arrivals is abandoned and leaves the state as it was.

    In a round of several phases a child may have arrived in one and be lost, refused or dropped in another.
    """

    round: int
    arrived: tuple[str, ...]
    lost: Mapping[str, str]  # child → reason
    refused: Mapping[str, str]  # child → what was wrong with its upload
    dropped: tuple[str, ...]  # children without an answer when the round ended
    scalars: Mapping[str, float]  # of the combined uploads

    @property
    def abandoned(self) -> bool:
        return not self.arrived


Command = Ask | Drop | Deadline | Answer | RoundEnd
