"""The price of a tree: what its servers' links carry and how long a round of each level takes, without training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from undergrowth.core import InputError
from undergrowth.devices import FREE, LinkProfile
from undergrowth.exchange import Entry
from undergrowth.runs.federation import Federation
from undergrowth.runs.rehearsal import Rehearsal, rehearse
from undergrowth.simulation import OWN_TRAINING

Row = dict[str, Any]


@dataclass
class _Branch:
    """What one round of the root takes at a node and below it."""

    bytes_down: float = 0.0  # over the links to its children
    bytes_up: float = 0.0
    device_bytes_down: float = 0.0  # of all devices below
    device_bytes_up: float = 0.0
    relayed: list[_Path] = field(default_factory=list)
    link_seconds: float = 0.0  # of the slowest of its links, down and up
    joules: float = 0.0  # of the network between it and its children
    relay_joules: float = 0.0  # the same if no node below combined anything
    server_flops: float = 0.0  # of what its server trains
    server_joules: float = 0.0


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

    def behind(self, link: LinkProfile, bytes_down: float, bytes_up: float) -> _Path:
        """This path with `link` before it, which carries `bytes_down` and `bytes_up` bytes."""
        down, up = max(self.down, bytes_down / link.down), max(self.up, bytes_up / link.up)
        return _Path(self.devices, self.latency + 2 * link.latency, down, up)


def price_tree(name: str, federation: Federation, again: bool = False) -> list[Row]:
    """One row per level of servers, the root first, for a typical round of the root; none for a star.

    `bytes_down` and `bytes_up` are those of all links to the level's children. `relay_bytes_down`, `relay_bytes_up`,
    `relay_joules` and `relay_seconds` are those of the same devices if no server below combined uploads: the packets of
    every device cross every link, as in a star whose server is the root. `seconds` is the longest time from an ask to
    the answer of a server of the level, at the root that of a round. `late` is the number of children that miss a
    deadline, `asynchronous` that of servers which do not wait for all children. `server_flops` and `server_joules` are
    those of what the level's servers train, `rounds` is the most of a server in a round of the root. All figures of
    an asynchronous root are means over the rounds of the run. `again`: as in `price_devices`.
    """
    topology = federation.topology
    if not topology.parents:
        return []
    rehearsal = rehearse(federation, again)
    branches = _price_branches(federation, rehearsal)
    rows, rounds = [], _rounds(federation)
    for depth in sorted(set(topology.depth.values())):
        level = {node: branches[node] for node in branches if topology.depth[node] == depth}
        if any(rehearsal.nodes[node].asked for node in level):
            row = {"method": name, "level": depth, **_price_level(federation, level, rehearsal)}
            rows.append({**row, "rounds": max(rounds[node] for node in level)})
    return rows


def _rounds(federation: Federation) -> dict[str, int]:
    """Node → its rounds in one round of the root, if all servers wait for all their children."""
    rounds = {federation.driver.root.name: 1}
    for node in federation.topology.children:  # parents first
        rounds |= {child: rounds[node] * federation.nodes[child].cycles for child in federation.nodes[node].nodes}
    return rounds


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


def _price_branches(federation: Federation, rehearsal: Rehearsal) -> dict[str, _Branch]:
    entries: dict[str, list[Entry]] = {node: [] for node in federation.topology.children}
    trained: dict[str, list[Entry]] = {node: [] for node in entries}
    for entry in rehearsal.entries:
        if entry.outcome != OWN_TRAINING:
            entries[entry.parent].append(entry)
        elif entry.child in trained:
            trained[entry.child].append(entry)
    branches: dict[str, _Branch] = {}
    for node in reversed([*entries]):  # children before their parents
        branch = branches[node] = _Branch()
        branch.server_flops = sum(entry.flops for entry in trained[node]) / rehearsal.rounds
        branch.server_joules = sum(entry.joules for entry in trained[node]) / rehearsal.rounds
        for entry in entries[node]:
            branch.bytes_down += entry.bytes_down / rehearsal.rounds
            branch.bytes_up += entry.bytes_up / rehearsal.rounds
        of_devices = [entry for entry in entries[node] if entry.child not in branches]
        of_nodes = [entry for entry in entries[node] if entry.child in branches]
        _add_devices(branch, of_devices, rehearsal.rounds)
        _add_nodes(federation, branch, of_nodes, branches, rehearsal.rounds)
    return branches


def _add_devices(branch: _Branch, entries: list[Entry], rounds: int) -> None:
    """Adds what crosses the links of a node's own devices."""
    branch.device_bytes_down += sum(entry.bytes_down for entry in entries) / rounds
    branch.device_bytes_up += sum(entry.bytes_up for entry in entries) / rounds
    times = [entry.end - entry.start for entry in entries if entry.outcome == "arrived"]
    if times:
        branch.relayed.append(_Path(max(times)))
        branch.link_seconds = max(times)


def _add_nodes(
    federation: Federation, branch: _Branch, entries: list[Entry], branches: Mapping[str, _Branch], rounds: int
) -> None:
    """Adds what crosses the links to nodes, and what would cross them if these nodes combined nothing."""
    for entry in entries:
        link = federation.server_links[entry.child]
        branch.joules += link.joules_per_byte * (entry.bytes_down + entry.bytes_up) / rounds
        # A late answer is taken to be as large as the packet that asked for it.
        seconds = link.seconds_down(entry.bytes_down) + link.seconds_up(entry.bytes_up or entry.bytes_down)
        branch.link_seconds = max(branch.link_seconds, seconds)
    for child in dict.fromkeys(entry.child for entry in entries):
        link, below = federation.server_links[child], branches[child]
        down, up = below.device_bytes_down, below.device_bytes_up
        branch.device_bytes_down += down
        branch.device_bytes_up += up
        branch.relayed += [path.behind(link, down, up) for path in below.relayed]
        branch.relay_joules += link.joules_per_byte * (down + up)


def _price_level(federation: Federation, level: Mapping[str, _Branch], rehearsal: Rehearsal) -> Row:
    nodes = [rehearsal.nodes[name] for name in level]
    names = dict.fromkeys(federation.server_links[child].name for node in nodes for child in node.nodes)
    return {
        "servers": sum(node.asked > 0 for node in nodes),
        "asynchronous": sum(node.asked > 0 and node.server.asynchronous for node in nodes),
        "children": sum(node.asked for node in nodes),
        "link": ", ".join(names) or "of the devices",
        "bytes_down": round(sum(branch.bytes_down for branch in level.values())),
        "bytes_up": round(sum(branch.bytes_up for branch in level.values())),
        "relay_bytes_down": round(sum(branch.device_bytes_down for branch in level.values())),
        "relay_bytes_up": round(sum(branch.device_bytes_up for branch in level.values())),
        "link_seconds": max(branch.link_seconds for branch in level.values()),
        "seconds": rehearsal.seconds if nodes[0].is_root else max(node.seconds for node in nodes),
        "relay_seconds": max((path.seconds for branch in level.values() for path in branch.relayed), default=0.0),
        # The price of a device has the energy of its own link.
        "joules": sum(branch.joules for branch in level.values()) if names else None,
        "relay_joules": sum(branch.relay_joules for branch in level.values()) if names else None,
        "late": sum(node.late for node in nodes),
        "server_flops": sum(branch.server_flops for branch in level.values()),
        "server_joules": sum(branch.server_joules for branch in level.values()),
    }
