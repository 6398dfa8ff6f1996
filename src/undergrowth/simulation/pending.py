"""What a simulation has begun and not ended yet: future events, open asks, and work and results that wait."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

from undergrowth.core import AskId, State
from undergrowth.engines import Outcome
from undergrowth.simulation.clock import Timing
from undergrowth.simulation.open_asks import OpenAsk, from_state, to_state


@dataclass
class Pending:
    """The event queue and the open asks of a simulation, and their form in a snapshot."""

    events: list[tuple[float, int, str, str, Any]] = field(default_factory=list)  # time, order, kind, node, content
    order: int = 0  # of events and asks: breaks ties between equal times
    asks: dict[str, OpenAsk] = field(default_factory=dict)  # child → its open ask
    waiting: dict[str, float] = field(default_factory=dict)  # device with a job to do → when that is due
    combined: dict[str, list[Outcome]] = field(default_factory=dict)  # node → combined uploads that have not arrived

    def open(self, parent: str, id: AskId, bytes_down: int, now: float, timing: Timing) -> OpenAsk:
        """Notes an ask that is given out now."""
        self.order += 1
        opened = self.asks[id[0]] = OpenAsk(id, self.order, parent, bytes_down, now, timing)
        return opened

    def push(self, time: float, kind: str, node: str, content: Any) -> None:
        """Puts a future event in the queue. Answers of devices at one time come in the order of their asks."""
        if kind == "device answers":
            order = self.asks[content[0]].order
        else:
            self.order += 1
            order = self.order
        heapq.heappush(self.events, (time, order, kind, node, content))

    def snapshot(self) -> State:
        return {
            "order": self.order,
            "events": [list(event) for event in self.events],
            "waiting": dict(self.waiting),
            "asks": {child: to_state(ask) for child, ask in self.asks.items()},
            "combined": {node: [vars(outcome) for outcome in outcomes] for node, outcomes in self.combined.items()},
        }

    def restore(self, snapshot: State) -> None:
        self.order = snapshot["order"]
        # Earlier versions had no phases, and kept only the round of a deadline and of a group of answers.
        self.events = [
            (time, order, kind, node, (what, 0) if isinstance(what, int) else what)
            for time, order, kind, node, what in snapshot["events"]
        ]
        self.waiting = dict(snapshot["waiting"])
        self.asks = {child: from_state(ask) for child, ask in snapshot["asks"].items()}
        self.combined = {
            node: [Outcome(**outcome) for outcome in outcomes] for node, outcomes in snapshot["combined"].items()
        }
