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

    What the topology says of a node comes before what `fleet` says of all nodes, or of all at one depth.
    """
    for_all = find_link(fleet.server_link)
    links = {node: find_link(topology.links[node]) if node in topology.links else for_all for node in topology.parents}
    return replace(topology, deadlines={**_deadlines(topology, fleet.node_deadlines), **topology.deadlines}), links


def _deadlines(topology: Topology, given: Mapping[str, float]) -> dict[str, float]:
    """Node → its deadline. `given` has names of nodes, and depths for all nodes there; a name comes first."""
    depths = {str(depth) for depth in topology.depth.values()}
    for key in given:
        if key not in topology.depth and key not in depths:
            names = [*topology.depth, *sorted(depths)]
            raise InputError(f"fleet.node_deadlines: the topology has no node or depth '{key}'; {suggest(key, names)}")
    found = {node: given[str(depth)] for node, depth in topology.depth.items() if str(depth) in given}
    return {**found, **{node: given[node] for node in topology.depth if node in given}}
