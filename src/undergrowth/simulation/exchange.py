"""An exchange: what is under way between a node and one of its children."""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import Context, State
from undergrowth.engines import Job, Outcome
from undergrowth.simulation.clock import Timing


@dataclass(slots=True)
class Exchange:
    """A child has been sent something and has not answered yet."""

    ticket: int  # tells an event of this exchange from one of an exchange that was given up
    parent: str
    bytes_down: int
    start: float
    timing: Timing
    job: Job | None = None  # work that nobody has done yet
    outcome: Outcome | None = None  # an upload that is done and on its way


def flat(exchange: Exchange) -> State:
    job, outcome = exchange.job, exchange.outcome
    return {
        "ticket": exchange.ticket,
        "parent": exchange.parent,
        "bytes_down": exchange.bytes_down,
        "start": exchange.start,
        "timing": tuple(exchange.timing),
        "job": job and {**job._asdict(), "context": tuple(job.context)},
        "outcome": outcome and dict(vars(outcome)),
    }


def unflat(kept: State) -> Exchange:
    job, outcome = kept["job"], kept["outcome"]
    return Exchange(
        **{
            **kept,
            "timing": Timing(*kept["timing"]),
            "job": job and Job(**{**job, "context": Context(*job["context"])}),
            "outcome": outcome and Outcome(**outcome),
        }
    )
