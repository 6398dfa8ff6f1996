"""The links between servers and the deadlines of single nodes, as an experiment gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from undergrowth.core import InputError, suggest
from undergrowth.devices import LinkProfile, find_link
from undergrowth.runs.config import FleetSection
from undergrowth.topology import Topology


def wire_servers(topology: Topology, fleet: FleetSection) -> tuple[Topology, dict[str, LinkProfile]]:
    """The topology with the deadline of every node that has its own, and the link of every node to its parent.

    What the topology says of a node comes before what `fleet` says of all nodes, or of all at one depth. A list of
    links has one for each depth, from the root down.
    """
    levels, given = max(topology.depth.values()), fleet.server_link
    if not isinstance(given, list):
        given = [given] * levels
    if len(given) != levels:
        raise InputError(
            f"fleet.server_link has {len(given)} links and the topology has {levels} levels of servers below the root; "
            "give one for each level, from the root down, or one for all"
        )
    by_depth = dict(enumerate(map(find_link, given), 1))
    if not levels:
        for link in fleet.server_link if isinstance(fleet.server_link, list) else [fleet.server_link]:
            find_link(link)  # has no effect in a star, but must be right all the same
    own = {node: topology.of(node).link for node in topology.parents}
    links = {
        node: by_depth[topology.depth[node]] if link is None else find_link(link, f"topology: link of node '{node}'")
        for node, link in own.items()
    }
    settings = dict(topology.settings)
    for node, deadline in _deadlines(topology, fleet.node_deadlines).items():
        if topology.of(node).deadline is None:
            settings[node] = replace(topology.of(node), deadline=deadline)
    return replace(topology, settings=settings), links


def _deadlines(topology: Topology, given: Mapping[str, float]) -> dict[str, float]:
    """Node → its deadline. `given` has names of nodes, and depths for all nodes there; a name comes first."""
    depths = {str(depth) for depth in topology.depth.values()}
    for key in given:
        if key not in topology.depth and key not in depths:
            names = [*topology.depth, *sorted(depths)]
            raise InputError(f"fleet.node_deadlines: the topology has no node or depth '{key}'; {suggest(key, names)}")
    found = {node: given[str(depth)] for node, depth in topology.depth.items() if str(depth) in given}
    return {**found, **{node: given[node] for node in topology.depth if node in given}}
