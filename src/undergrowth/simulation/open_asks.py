"""Open asks and the contents of answers, with their forms in a snapshot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from undergrowth.core import AskId, Context, Lost, Packet, Partial, Refused, State
from undergrowth.engines import Job, Outcome
from undergrowth.simulation.clock import Timing


@dataclass(slots=True)
class OpenAsk:
    """A child has been asked and has not answered yet."""

    id: AskId
    order: int  # asks are booked in the order in which they were given out
    parent: str
    bytes_down: int
    start: float
    timing: Timing
    job: Job | None = None  # the device's work, until an engine does it
    outcome: Outcome | None = None  # the finished work, until its upload arrives


def to_state(ask: OpenAsk) -> State:
    """The ask as a pytree."""
    job, outcome = ask.job, ask.outcome
    return {
        **{field.name: getattr(ask, field.name) for field in fields(ask)},
        "id": tuple(ask.id),
        "timing": tuple(ask.timing),
        "job": job and {**job._asdict(), "context": tuple(job.context)},
        "outcome": outcome and dict(vars(outcome)),
    }


def from_state(state: State) -> OpenAsk:
    """The ask that `to_state` turned into a pytree."""
    job, outcome = state["job"], state["outcome"]
    return OpenAsk(
        **{
            **state,
            "id": AskId(*state["id"]),
            "timing": Timing(*state["timing"]),
            "job": job and Job(**{**job, "context": Context(*job["context"])}),
            "outcome": outcome and Outcome(**outcome),
        }
    )


def count_bytes(content: Packet | Partial | Lost | Refused) -> int:
    """The bytes of an answer. A loss or a refusal is a message without a packet."""
    packet = content.packet if isinstance(content, Partial) else content
    return packet.nbytes if isinstance(packet, Packet) else 0


def write_content(content: Packet | Partial | Lost | Refused) -> tuple[str, Any]:
    """The content of an answer as a pytree, for a snapshot."""
    if isinstance(content, Packet):
        return "upload", content
    return type(content).__name__.lower(), content[0]


def read_content(kind: str, value: Any) -> Packet | Partial | Lost | Refused:
    """The content that `write_content` turned into a pytree."""
    kinds: dict[str, Callable[[Any], Packet | Partial | Lost | Refused]] = {
        "upload": lambda packet: packet, "partial": Partial, "lost": Lost, "refused": Refused,
    }  # fmt: skip
    return kinds[kind](value)
