"""The price of a tree: what its servers' links carry and how long a round of each level takes, without training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from undergrowth.core import Ask, AskId, Deadline, InputError, Node, Packet, Reducer, State
from undergrowth.devices import FREE, LinkProfile
from undergrowth.devices.meter import Meter
from undergrowth.runs.federation import Federation

Row = dict[str, Any]


@dataclass
class _Branch:
    """One round of a node for one ask of its parent, priced. Bytes are those of one round of the root."""

    asks: list[Ask] = field(default_factory=list)
    deadline: float | None = None
    enough: int | None = None
    state: State = field(default_factory=dict)  # of the node, after the packet of its parent
    seconds: float = 0.0  # from its start to its answer
    late: int = 0  # children that are not back by the deadline
    kinds: Counter[Hashable] = field(default_factory=Counter)  # kind of upload → how many of the devices below send it
    uploads: dict[str, Packet] = field(default_factory=dict)  # child → the form of what it sends
    bytes_down: int = 0  # over the links to its children
    bytes_up: int = 0
    device_bytes_down: int = 0  # of all devices below
    device_bytes_up: int = 0
    relayed: list[_Path] = field(default_factory=list)
    link_seconds: float = 0.0  # of the slowest of its links, down and up
    joules: float = 0.0  # of the network between it and its children
    relay_joules: float = 0.0  # the same if no node below combined anything


@dataclass(frozen=True)
class _Path:
    """From a node to the devices of one edge server, if every packet passed the nodes between them as it is."""

    devices: float  # seconds of the slowest device
    latency: float = 0.0  # there and back
    down: float = 0.0  # seconds of the narrowest link for all packets that cross it
    up: float = 0.0

    @property
    def seconds(self) -> float:
        return self.devices + self.latency + self.down + self.up

    def behind(self, link: LinkProfile, bytes_down: int, bytes_up: int) -> _Path:
        """This path with `link` before it, which carries `bytes_down` and `bytes_up` bytes."""
        down, up = max(self.down, bytes_down / link.down), max(self.up, bytes_up / link.up)
        return _Path(self.devices, self.latency + 2 * link.latency, down, up)


def price_tree(name: str, federation: Federation) -> list[Row]:
    """One row per level of servers, the root first, for a typical round of the root; none for a star.

    `bytes_down` and `bytes_up` are those of all links to the level's children. `relay_bytes_down`, `relay_bytes_up`,
    `relay_joules` and `relay_seconds` are those of the same devices if no server below combined uploads: the packets of
    every device cross every link, as in a star whose server is the root. `seconds` is the longest round of a server of
    the level, and `late` the number of children that miss its deadline.
    """
    topology = federation.topology
    if not topology.parents:
        return []
    root = federation.driver.root
    root.initialise()
    steady, known = root.server.steady_state(federation.task, root.state), {}
    if steady is not root.state:  # what servers below know after the first round
        known = {name: branch.state for name, branch in _ask_all(federation, root.state, {})}
    branches = dict(_ask_all(federation, steady, known))
    uploads = Uploads(federation)
    for node in reversed([*branches]):  # children before their parents
        _price_branch(federation, node, branches, uploads)
    rows = []
    for depth in sorted(set(topology.depth.values())):
        level = {node: branches[node] for node in branches if topology.depth[node] == depth}
        if level:
            rows.append({"method": name, "level": depth, **_price_level(federation, level)})
    return rows


def check_server_deadlines(federation: Federation) -> None:
    """Refuses deadlines that let no answer of a server through to the root; notes how many servers are late."""
    links = federation.server_links.values()
    if federation.method.server.asynchronous or not any(link != FREE for link in links):
        return  # without links, a server is as late as its devices
    rows = price_tree("", federation)
    for row in rows[:-1]:
        if row["late"] == row["children"]:
            raise InputError(
                f"fleet.deadline: no server at depth {row['level'] + 1} answers the server above it in time: the "
                f"links between them take up to {row['link_seconds']:.6g} seconds; give the servers below a shorter "
                f"deadline, such as fleet.node_deadlines={{{row['level'] + 1}: SECONDS}}, or those above a longer one"
            )
        if row["late"]:
            federation.notes.append(
                f"{row['late']} of {row['children']} servers at depth {row['level'] + 1} answer after the deadline of "
                "the server above them; fleet.node_deadlines can give them a shorter one"
            )


def _ask_all(federation: Federation, state: State, known: Mapping[str, State]) -> Iterator[tuple[str, _Branch]]:
    """What every node would ask in a round, from the root down.

    `state` is that of the root, and `known` has those of the nodes below it; a node that is not there has none yet.
    """
    topology = federation.topology
    packets: dict[str, Packet] = {}
    for name in topology.children:
        node = federation.nodes[name]
        copy = Node(
            name, node.server, node.task, node.children, 1, node.seed, node.is_root, node.nodes, node.knowledge,
            devices=node.devices, samples=node.samples,
        )  # fmt: skip
        if node.is_root:
            copy.adopt_state(state)
            copy.start()
        elif name in packets:
            if name in known:
                copy.adopt_state(known[name])
            copy.start(Ask(AskId(name, 0, 0), packets[name]))
        else:
            continue
        commands = copy.advance()
        asks = [command for command in commands if isinstance(command, Ask)]
        packets.update({ask.child: ask.packet for ask in asks if ask.child in topology.children})
        deadline = next((command.seconds for command in commands if isinstance(command, Deadline)), None)
        yield name, _Branch(asks, deadline, copy.enough, copy.state)


def _price_branch(federation: Federation, name: str, branches: dict[str, _Branch], uploads: Uploads) -> None:
    node, branch = federation.nodes[name], branches[name]
    by = branch.deadline if node.server.accepts_partial and not node.server.asynchronous else None
    limit = math.inf if branch.deadline is None else branch.deadline
    times, slowest_device = [], 0.0
    for ask in branch.asks:
        below = branches.get(ask.child)
        if below is not None:
            times.append(_price_link(federation, ask, branch, below, uploads, limit))
            continue
        down, size = federation.world.links.down(ask.packet)
        work, timing = federation.clock.plain_timing(ask.child, down, size, by)
        if timing.lost:
            continue
        times.append(timing.seconds)
        branch.device_bytes_down += size
        if timing.seconds <= limit:
            slowest_device = max(slowest_device, timing.seconds)
            branch.device_bytes_up += work.bytes_up
            branch.kinds[uploads.kind(ask.packet)] += 1
            branch.uploads[ask.child] = uploads.of(ask.packet)
    if slowest_device:  # its devices are its own children
        branch.bytes_down, branch.bytes_up = branch.device_bytes_down, branch.device_bytes_up
        branch.relayed.append(_Path(slowest_device))
        branch.link_seconds = slowest_device
    in_time = sorted(seconds for seconds in times if seconds <= limit)
    branch.late = len(times) - len(in_time)
    enough = branch.enough
    if enough is not None and len(in_time) >= enough:
        branch.seconds = in_time[enough - 1]
    else:
        branch.seconds = limit if branch.late else max(in_time, default=0.0)
    if not node.is_root:
        _repeat(branch, node.cycles)


def _price_link(
    federation: Federation, ask: Ask, branch: _Branch, below: _Branch, uploads: Uploads, limit: float
) -> float:
    """Adds the link to a node below; returns the seconds until that node has answered."""
    link, size = federation.server_links[ask.child], ask.packet.nbytes
    server = federation.nodes[ask.child].server
    expected = server.expected_answer(ask.child, below.uploads) if below.uploads else None
    answer = uploads.combined_bytes(server.reducer, below.kinds) if expected is None else expected.nbytes
    down, up = link.seconds_down(size), link.seconds_up(answer)
    seconds = down + below.seconds + up
    in_time = seconds <= limit
    branch.bytes_down += size
    branch.bytes_up += answer if in_time else 0
    branch.kinds.update(below.kinds if in_time else ())
    if in_time and expected is not None:
        branch.uploads[ask.child] = expected
    branch.device_bytes_down += below.device_bytes_down
    branch.device_bytes_up += below.device_bytes_up
    branch.relayed += [path.behind(link, below.device_bytes_down, below.device_bytes_up) for path in below.relayed]
    branch.link_seconds = max(branch.link_seconds, down + up)
    branch.joules += link.joules_per_byte * (size + (answer if in_time else 0))
    branch.relay_joules += link.joules_per_byte * (below.device_bytes_down + below.device_bytes_up)
    return seconds


def _repeat(branch: _Branch, cycles: int) -> None:
    """Prices `cycles` rounds for one ask of the parent instead of one."""
    for name in (
        "seconds", "bytes_down", "bytes_up", "device_bytes_down", "device_bytes_up", "joules", "relay_joules"
    ):  # fmt: skip
        setattr(branch, name, getattr(branch, name) * cycles)


def _price_level(federation: Federation, level: dict[str, _Branch]) -> Row:
    children = [ask.child for branch in level.values() for ask in branch.asks]
    names = dict.fromkeys(federation.server_links[child].name for child in children if child in federation.server_links)
    return {
        "servers": len(level),
        "children": len(children),
        "link": ", ".join(names) or "of the devices",
        "bytes_down": sum(branch.bytes_down for branch in level.values()),
        "bytes_up": sum(branch.bytes_up for branch in level.values()),
        "relay_bytes_down": sum(branch.device_bytes_down for branch in level.values()),
        "relay_bytes_up": sum(branch.device_bytes_up for branch in level.values()),
        "link_seconds": max(branch.link_seconds for branch in level.values()),
        "seconds": max(branch.seconds for branch in level.values()),
        "relay_seconds": max((path.seconds for branch in level.values() for path in branch.relayed), default=0.0),
        # The price of a device has the energy of its own link.
        "joules": sum(branch.joules for branch in level.values()) if names else None,
        "relay_joules": sum(branch.relay_joules for branch in level.values()) if names else None,
        "late": sum(branch.late for branch in level.values()),
    }


class Uploads:
    """The uploads that devices would send, on meta tensors, and how many bytes combined ones have."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self._uploads: dict[Hashable, Packet] = {}
        # Id of a packet → the packet, which keeps the id in use, and its kind.
        self._kinds: dict[int, tuple[Packet, Hashable]] = {}
        self._known: list[tuple[Reducer, tuple[Hashable, ...], int]] = []  # reducer, kinds → bytes of the result

    def kind(self, down: Packet) -> Hashable:
        """What the form of an upload depends on. Uploads of one kind have the same form."""
        if id(down) not in self._kinds:
            kind = (down.signature, tuple(down.scalars), tuple(down.tags.items()))
            self._kinds[id(down)] = (down, kind)
            if kind not in self._uploads:
                packet, _ = self.federation.world.links.down(down)
                self._uploads[kind] = self.federation.clock.tracer.upload(packet)
        return self._kinds[id(down)][1]

    def of(self, down: Packet) -> Packet:
        """The upload of a device that receives `down`."""
        return self._uploads[self.kind(down)]

    def combined_bytes(self, reducer: Reducer, kinds: Counter[Hashable]) -> int:
        """The bytes of the partial result of uploads. A mean has as many for any number; a collection grows."""
        if not kinds:
            return 0
        one_of_each = self._merged(reducer, tuple(kinds))
        return one_of_each + sum(
            (number - 1) * (self._merged(reducer, (kind, kind)) - self._merged(reducer, (kind,)))
            for kind, number in kinds.items()
            if number > 1
        )

    def _merged(self, reducer: Reducer, kinds: tuple[Hashable, ...]) -> int:
        for known in self._known:
            if known[:2] == (reducer, kinds):
                return known[2]
        with Meter(guess=True):
            lifted = [reducer.lift(f"device-{n}", self._uploads[kind], 0) for n, kind in enumerate(kinds)]
            size = reduce(reducer.merge, lifted).nbytes
        self._known.append((reducer, kinds, size))
        return size
