"""The outlook: what one round would cost every device, without training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from undergrowth.core import InputError, Node, Packet, Send
from undergrowth.runs.federation import Federation
from undergrowth.simulation import Timing

MOST_DEVICES = 2000  # devices that are looked at; of more, evenly spaced ones


@dataclass(frozen=True)
class Prospect:
    """The first job of one device."""

    device: str
    bytes_down: int
    bytes_up: int
    timing: Timing

    def verdict(self, deadline: float | None) -> str:
        if self.timing.lost:
            return "too big"
        return "too slow" if deadline is not None and self.timing.seconds > deadline else "fits"


def outlook(federation: Federation, partial: bool = False) -> list[Prospect]:
    """The first job of every device that has samples. `partial`: with as many steps as the deadline leaves room for."""
    simulation, population = federation.simulation, federation.population
    packets = first_packets(federation)
    usual = next(iter(packets.values()))
    devices = [device for device in population.devices if population.size(device)]
    by = federation.task.train.deadline if partial else None
    prospects = []
    for device in devices[:: math.ceil(len(devices) / MOST_DEVICES)]:
        down, size = simulation.links.down(packets.get(device, usual))
        work, timing = federation.clock.plain_timing(device, down, size, by)
        prospects.append(Prospect(device, size, work.bytes_up, timing))
    return prospects


def first_packets(federation: Federation) -> Mapping[str, Packet]:
    """What each device is sent first; one that is not asked in the first round is not in it."""
    root = federation.simulation.root
    children = tuple(device for device in federation.population.devices if federation.population.size(device))
    server = federation.method.server
    node = Node(root.name, server, federation.task, children, 1, seed=root.seed, knows=root.knows)
    node.start()
    sends = [command for command in node.advance() if isinstance(command, Send)]
    if not sends:
        raise InputError(f"method '{type(federation.method).__name__}' asks no device in its first round")
    return {send.child: send.packet for send in sends}


def check_deadline(federation: Federation) -> None:
    """Refuses a deadline that nobody can meet and a model that nobody can hold; notes how many cannot."""
    server, deadline = federation.method.server, federation.task.train.deadline
    prospects = outlook(federation, partial=server.accepts_partial)
    verdicts = [prospect.verdict(None if server.asynchronous else deadline) for prospect in prospects]
    if "fits" not in verdicts:
        if "too slow" not in verdicts:
            raise InputError(f"fleet: no device can hold the work: {prospects[0].timing.lost}; choose a smaller model")
        able = [prospect for prospect in prospects if not prospect.timing.lost]
        fastest = min(able, key=lambda prospect: prospect.timing.seconds)
        raise InputError(
            f"fleet.deadline {deadline:g}: no device can do a round in that time; the fastest, {fastest.device}, "
            f"needs {fastest.timing.seconds:.6g} seconds; `undergrowth plan` shows what each could do"
        )
    for verdict, words in (("too slow", "cannot finish by the deadline"), ("too big", "cannot hold the work")):
        count = verdicts.count(verdict)
        if count:
            federation.notes.append(f"{count} of {len(verdicts)} devices {words}")
