"""Preview: what one round would ask of every device and what it would cost, without training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from undergrowth.core import Context, InputError, Model, Node, Packet, State, View
from undergrowth.core.names import MODEL
from undergrowth.core.server_calls import next_plan, next_state
from undergrowth.learning.own_training import BETWEEN_ROUNDS, START
from undergrowth.learning.slice_client import RATIO
from undergrowth.simulation import Timing

if TYPE_CHECKING:  # federation.py imports this module
    from undergrowth.runs.federation import Federation

MAX_DEVICES_PRICED = 2000  # of a larger population, evenly spaced devices are priced


@dataclass(frozen=True)
class FirstRound:
    """What the servers would send to each device, and the root's deadline. Devices that none asks are missing."""

    packets: Mapping[str, Packet]
    deadline: float | None
    later: Sequence[Mapping[str, Packet]]  # packets of the phases after the first, to devices that answered before
    inner: _InnerServers  # after they got the packets of this round


@dataclass(frozen=True)
class Prospect:
    """The job of one device in a typical round, and its price.

    timing: of the first phase, by which the device can take part or not. Bytes and `total` are of all phases.
    shortest_deadline: the seconds of the least work that the server accepts: all of it, or one step.
    ratio: the fraction of the channels that the device gets from a method that slices the model; None otherwise.
    own: of the training between rounds, which `total` contains.
    wait: the seconds of it that are left when the device is asked.
    """

    device: str
    bytes_down: int
    bytes_up: int
    timing: Timing
    total: Timing
    shortest_deadline: float
    ratio: float | None
    own: Timing = Timing()
    wait: float = 0.0

    @property
    def seconds(self) -> float:
        """From the ask to the answer."""
        return self.wait + self.timing.seconds

    def verdict(self, deadline: float | None) -> str:
        if self.timing.lost:
            return "too big"
        return "too slow" if deadline is not None and self.seconds > deadline else "fits"

    def spent(self, deadline: float | None) -> float:
        """The joules that the round takes. A device that is too slow works until the deadline."""
        if self.timing.lost:
            return 0.0
        if deadline is not None and self.seconds > deadline:
            return self.timing.cut(max(0.0, deadline - self.wait)).joules + self.own.joules
        return self.total.joules


def preview_first_round(nodes: Mapping[str, Node], root: Node) -> FirstRound:
    """The first typical round, as if every server asked all its children that it may.

    The state of the root's server is made here, and the run starts from the same state. If a typical round differs from
    the first one, the servers below the root have done the first one before.
    """
    root.initialise()
    steady = root.server.steady_state(root.task, root.state)
    inner = _InnerServers(nodes)
    if steady is not root.state and (root.nodes or root.task.train.deadline is not None):
        _plan(inner, root, root.state)  # refuses a first round that asks no device
        inner.round += 1
    return _plan(inner, root, steady)


def _plan(inner: _InnerServers, root: Node, state: State) -> FirstRound:
    packets, deadline = inner.ask_all(root, state)
    if not packets:
        why = "" if deadline is None else f"; with fleet.deadline {deadline:g} none may be able to do it in time"
        raise InputError(f"the method's {type(root.server).__name__} asks no device in its first round{why}")
    phases = root.server.phases(root.task, _first_context(root))
    later = [inner.ask_all(root, state, number)[0] for number in range(1, len(phases))]
    return FirstRound(packets, deadline, later, inner)


def _first_context(node: Node) -> Context:
    return node.context()._replace(round=0, asked=0)


@dataclass
class _InnerServers:
    """The servers below the root: their states, and their present round."""

    nodes: Mapping[str, Node]
    states: dict[str, State] = field(default_factory=dict)
    round: int = 0

    def ask_all(
        self, node: Node, state: State, number: int = 0, heard: bool = False
    ) -> tuple[dict[str, Packet], float | None]:
        """The packets for all devices below `node`, whose server has `state`, in the phase `number`; its deadline.

        `heard`: the children have answered in an earlier round.
        """
        # With sample 1.0 every device gets the work that is meant for it.
        task = replace(node.task, train=replace(node.task.train, sample=1.0))
        context, server = self._context(node)._replace(turn=number), node.server
        phases = server.phases(task, context)
        view = View(
            node.children, nodes=node.nodes, knowledge=node.knowledge,
            heard={child: {} for child in node.children} if heard or (self.round and not node.is_root) else {},
            phase=phases[number] if number < len(phases) else "", answered=node.children if number else (),
        )  # fmt: skip
        plan = next_plan(server, frozenset(node.children), task, state, view, context)
        packets: dict[str, Packet] = {}
        for child, packet in plan.packets.items():
            if child in node.nodes:
                packets |= self.ask_all(self.nodes[child], self._adopted(child, packet), number, heard)[0]
            else:
                packets[child] = packet
        return packets, plan.deadline

    def _adopted(self, name: str, packet: Packet) -> State:
        """The state of a server that has got `packet` from its parent."""
        node = self.nodes[name]
        context, server = self._context(node), node.server
        state = self.states[name] if name in self.states else next_state(server, "init", node.task, context)
        self.states[name] = next_state(server, "adopt", node.task, state, packet, context)
        return self.states[name]

    def _context(self, node: Node) -> Context:
        return _first_context(node)._replace(round=0 if node.is_root else self.round)


def gets_same_again(federation: Federation) -> bool:
    """Whether a device that has answered before gets the same kind of packet in a typical round as a new one."""
    root, first = federation.driver.root, federation.first_round
    if root.task.train.rounds == 1:
        return False
    steady, inner = root.server.steady_state(root.task, root.state), first.inner
    packets, _ = replace(inner, states=dict(inner.states)).ask_all(root, steady, heard=True)
    return packets.keys() == first.packets.keys() and all(
        _kind(packets[device]) == _kind(packet) for device, packet in first.packets.items()
    )


def _kind(packet: Packet) -> tuple[object, ...]:
    return packet.signature, tuple(packet.scalars), tuple(packet.tags)


def price_devices(federation: Federation, partial: bool = False, again: bool = False) -> list[Prospect]:
    """The price of a typical round for each device with samples.

    `partial`: price only as many steps as the deadline leaves time for.
    `again`: devices keep what they keep after earlier rounds, if the same packets go to new devices and to these. By
    default they keep nothing.
    """
    packets, later = federation.first_round.packets, federation.first_round.later
    typical = next(iter(packets.values()))
    task, devices = federation.task, federation.devices_with_samples
    own_state = {MODEL: task.model.initial(0)} if BETWEEN_ROUNDS in federation.world.servers else {}
    again = again and gets_same_again(federation)
    above = _seconds_above(federation, typical.nbytes) if own_state else {}
    prospects = []
    for device in devices[:: math.ceil(len(devices) / MAX_DEVICES_PRICED)]:
        packet = packets.get(device, typical)
        down, size = federation.world.links.down(packet)
        kept = federation.clock.tracer.state_after(down) if again else {}
        own, wait = Timing(), 0.0
        if own_state:
            own = federation.clock.own_timing(device, START, own_state, 0)
            wait = 0.0 if own.lost else max(0.0, own.seconds - above[federation.servers[device]])
        by = federation.deadline_of(device) if partial else None
        work, timing = federation.clock.plain_timing(device, down, size, None if by is None else by - wait, kept)
        shortest = wait + timing.seconds
        if partial and work.steps:  # a job that was cut short has the compute time of `limit` steps
            shortest -= timing.seconds_compute * (1 - work.fraction(1, timing.limit))
        total, bytes_down, bytes_up = timing, size, work.bytes_up
        for phase in later if not timing.lost else ():
            if device in phase:
                down, size = federation.world.links.down(phase[device])
                work, more = federation.clock.plain_timing(device, down, size, None, kept)
                total, bytes_down, bytes_up = total.then(more), bytes_down + size, bytes_up + work.bytes_up
        own = Timing() if own.lost or timing.lost else own
        total = total.then(own)
        ratio = packet.scalars.get(RATIO)
        prospects.append(Prospect(device, bytes_down, bytes_up, timing, total, shortest, ratio, own, wait))
    return prospects


def _seconds_above(federation: Federation, size: int) -> dict[str, float]:
    """Node → the seconds that a packet of `size` bytes takes from the root to it."""
    links, children = federation.server_links, federation.topology.children
    above = dict.fromkeys(children, 0.0)
    for node, below in children.items():  # parents first
        above |= {child: above[node] + links[child].seconds_down(size) for child in below if child in links}
    return above


def describe_guess(model: Model) -> list[str]:
    """A note about the split levels of a model, if the priced work used levels that are a guess."""
    levels = model.binding.levels
    if not levels.guessed or not levels.used:
        return []
    places = ", ".join(f"{level} before {name or 'the whole model'}" for level, name in levels.names.items())
    level, name = next(iter(levels.names.items()))
    return [f"model: its levels are a guess: {places}; model.levels names others, such as {{{level}: {name}}}"]


def check_deadline(federation: Federation) -> None:
    """Refuses a deadline that no device can meet and a model that no device can hold; notes how many cannot."""
    deadline = federation.first_round.deadline
    prospects = price_devices(federation, partial=federation.method.server.accepts_partial)
    deadlines = [deadline] * len(prospects)
    if federation.topology.deadlines and not federation.method.server.asynchronous:
        deadlines = [federation.deadline_of(prospect.device) for prospect in prospects]
    verdicts = [prospect.verdict(each) for prospect, each in zip(prospects, deadlines, strict=True)]
    if "fits" not in verdicts:
        if "too slow" not in verdicts:
            raise InputError(f"fleet: no device can hold the work: {prospects[0].timing.lost}; choose a smaller model")
        able = [prospect for prospect in prospects if not prospect.timing.lost]
        fastest = min(able, key=lambda prospect: prospect.seconds)
        training = f", {fastest.wait:.6g} of them for training between rounds" if fastest.wait else ""
        deadline = max(each for each in deadlines if each is not None)
        raise InputError(
            f"fleet.deadline {deadline:g}: no device can do a round in that time; the fastest, {fastest.device}, "
            f"needs {fastest.seconds:.6g} seconds{training}; `undergrowth plan` shows what each could do"
        )
    for verdict, words in (("too slow", "cannot finish by the deadline"), ("too big", "cannot hold the work")):
        count = verdicts.count(verdict)
        if count:
            federation.notes.append(f"{count} of {len(verdicts)} devices {words}")
