"""Devices that train the model of their own between rounds of the root."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from undergrowth.core import Context, Node
from undergrowth.core.names import MODEL
from undergrowth.engines import Engine, Job, World
from undergrowth.exchange import Entry, Ledger
from undergrowth.learning.own_training import BETWEEN_ROUNDS, START
from undergrowth.simulation.clock import Clock, booked_values

OWN_TRAINING = "own training"  # the outcome of its entries in the ledger


@dataclass
class OwnTraining:
    """After every round, each device that has a model of its own and is not at work trains it."""

    nodes: Mapping[str, Node]
    world: World
    clock: Clock
    ready: dict[str, float] = field(default_factory=dict)  # device → when it has finished

    def wait(self, device: str, now: float) -> float:
        """The seconds until a device can work for a server."""
        return max(0.0, self.ready.get(device, now) - now)

    def run(self, engine: Engine, round: int, now: float, busy: Container[str], ledger: Ledger) -> None:
        """Trains after a round of the root, counted from 0, if devices do so in this run.

        `busy`: devices that work for a server. Work takes time: a device that is asked before it has finished starts
        later. A device that cannot be reached, or has not enough memory or charge, does not train.
        """
        if BETWEEN_ROUNDS not in self.world.servers:
            return
        away = self.clock.away(now)
        parents = {child: node for node in self.nodes.values() for child in node.children if child not in self.nodes}
        own = self.world.states.all()
        jobs, entries = [], {}
        for device, node in parents.items():
            if device in busy or device in away or self.wait(device, now):
                continue
            state = own.get(device, {})
            if MODEL not in state:
                continue
            timing = self.clock.own_timing(device, START, state, round)
            if timing.lost:
                continue
            context = Context(node.seed, device, round, -1)  # a turn that no ask has
            jobs.append(Job(BETWEEN_ROUNDS, device, START, context, root_round=round))
            about = (round + 1, node.name, device, OWN_TRAINING, "", 0, 0, now)
            entries[device] = Entry._make(about + booked_values(timing))
            self.clock.end_job(device, timing)
            self.ready[device] = now + timing.seconds_compute
        for outcome in engine.run(jobs):
            for device, problem in outcome.refused.items():
                entries[device] = entries[device]._replace(reason=problem)
        for entry in entries.values():
            ledger.book(entry)
