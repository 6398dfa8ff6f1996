"""The outlook: what one round would cost every device, without training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from undergrowth.core import Alarm, InputError, Node, Packet, Send
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
    packets, _ = first_round(federation)
    usual = next(iter(packets.values()))
    population = federation.population
    devices = [device for device in population.devices if population.size(device)]
    by = federation.task.train.deadline if partial else None
    prospects = []
    for device in devices[:: math.ceil(len(devices) / MOST_DEVICES)]:
        down, size = federation.simulation.links.down(packets.get(device, usual))
        work, timing = federation.clock.plain_timing(device, down, size, by)
        prospects.append(Prospect(device, size, work.bytes_up, timing))
    return prospects


def first_round(federation: Federation, usual: bool = True) -> tuple[Mapping[str, Packet], float | None]:
    """What each device is sent in its first round, or in its first usual one, and the deadline of that round.

    Who is not asked in it is not there.
    """
    root = federation.simulation.root
    children = tuple(device for device in federation.population.devices if federation.population.size(device))
    server = federation.method.server
    # Everybody is asked who may be: each with the work that is meant for it.
    task = replace(federation.task, train=replace(federation.task.train, sample=1.0))
    node = Node(root.name, server, task, children, 1, seed=root.seed, knows=root.knows)
    node.start()
    if usual:
        node.state = server.steady_state(federation.task, node.state)
    commands = node.advance()
    packets = {command.child: command.packet for command in commands if isinstance(command, Send)}
    if not packets:
        name, deadline = type(federation.method).__name__, task.train.deadline
        why = "" if deadline is None else f"; with fleet.deadline {deadline:g} nobody may be able to do it in time"
        raise InputError(f"method '{name}' asks no device in its first round{why}")
    return packets, next((command.seconds for command in commands if isinstance(command, Alarm)), None)


def check_deadline(federation: Federation) -> None:
    """Refuses a deadline that nobody can meet and a model that nobody can hold; notes how many cannot."""
    _, deadline = first_round(federation)
    if deadline is not None:
        first_round(federation, usual=False)  # refuses a first round without anybody
    prospects = outlook(federation, partial=federation.method.server.accepts_partial)
    verdicts = [prospect.verdict(deadline) for prospect in prospects]
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
