"""Topology files: YAML with the servers by name, or with a rule that makes them.

    nodes:
      server: {proxy: 0.5}                           # the root; it need not be listed
      europe: {rounds: 2}                            # below the root, because it names no parent
      paris: {parent: europe, devices: 3, sample: 0.5}
      berlin: {parent: europe, devices: [device-007, device-009]}
      tokyo: {devices: rest, deadline: 60}

`devices` are names, a number (the next ones that no list names), or `rest`. Every device must be below one server.
Settings of a node: rounds, sample, quorum, deadline, asynchronous, link, and proxy, a fraction of the run's public data
or the section of a data set, such as {name: mnist, samples: 500}.

    tree: {by: [language]}                           # a server language-french for each value of a field
    tree: {by: [{language: {romance: [french, italian], germanic: [german]}}, language]}   # groups of values first
    tree: {servers: [2, 3], skew: 0.5}               # levels of servers; each last one has half the devices of the next

Several fields make several levels. The field `label` is always there: the most frequent class of a device. Beside
`tree`, `nodes` may give settings to the servers that it makes. An experiment may have the same keys in place of a file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from undergrowth.core import InputError, suggest
from undergrowth.devices.plain_yaml import is_number, load_file
from undergrowth.topology.topology import ROOT, Groups, NodeSettings, Topology, build_levels, check_names

REST = "rest"
MAX_DEPTH = 100  # of nodes below the root
_SETTINGS = tuple(field.name for field in fields(NodeSettings))


def build_described(what: str, content: Mapping[str, Any], devices: Sequence[str], groups: Groups | None) -> Topology:
    """The topology that the keys of a file describe for these devices. `what` begins the messages of errors.

    `groups` returns the value of a field of the data set at each device.
    """
    rows = {str(name): _as_row(f"{what}: node '{name}'", row) for name, row in content.get("nodes", {}).items()}
    settings = {name: _read_settings(f"{what}: node '{name}'", row) for name, row in rows.items()}
    if "tree" in content:
        built = _make_tree(what, content["tree"], devices, groups)
        for name, row in rows.items():
            if name not in built.children:
                raise InputError(f"{what}: its tree has no node '{name}'; {suggest(name, list(built.children))}")
            if "parent" in row or "devices" in row:
                raise InputError(f"{what}: node '{name}' has a place in the tree; leave out its parent and devices")
    else:
        built = _place(what, rows, devices)
    if settings.get(ROOT, NodeSettings()).rounds is not None:
        raise InputError(f"{what}: node '{ROOT}': the rounds of the root are train.rounds; leave them out here")
    return Topology(built.children, built.depth, settings)


def read_content(path: Path) -> Mapping[str, Any]:
    """The keys of a topology file."""
    what = f"topology file '{path}'"
    return check_content(what, load_file(path, what))


def check_content(what: str, content: Any) -> Mapping[str, Any]:
    """`content`, if it has the keys of a topology."""
    if not isinstance(content, Mapping) or not set(content) <= {"nodes", "tree"} or not content:
        raise InputError(f"{what} must have the key 'nodes' or 'tree', such as nodes: {{paris: {{devices: 3}}}}")
    if not isinstance(content.get("nodes", {}), Mapping):
        raise InputError(f"{what}: nodes must map names to settings, such as nodes: {{paris: {{devices: 3}}}}")
    return content


def devices_named(content: Mapping[str, Any]) -> int | None:
    """The number of devices that the nodes of a file have; None if it depends on the data."""
    given = [row["devices"] for row in content.get("nodes", {}).values() if isinstance(row, dict) and "devices" in row]
    if "tree" in content or REST in given:
        return None
    return sum(len(each) if isinstance(each, list) else each for each in given if isinstance(each, list | int))


# Nodes by name ------------------------------------------------------------------------------------------------


def _as_row(place: str, row: Any) -> dict[str, Any]:
    if row is None:
        return {}
    if not isinstance(row, dict):
        raise InputError(f"{place} is {row!r} and must have settings, such as {{parent: {ROOT}, devices: 3}}")
    known = ("parent", "devices", *_SETTINGS)
    for key in row:
        if key not in known:
            raise InputError(f"{place}: unknown key '{key}'; {suggest(str(key), known)}")
    return row


def _read_settings(place: str, row: Mapping[str, Any]) -> NodeSettings:
    for key in ("sample", "quorum"):
        _check(place, row, key, _is_fraction, "a number above 0 and at most 1")
    _check(place, row, "deadline", lambda value: is_number(value) and value > 0, "a number of seconds above 0")
    _check(place, row, "rounds", lambda value: type(value) is int and value > 0, "a whole number of at least 1")
    _check(place, row, "asynchronous", lambda value: isinstance(value, bool), "true or false")
    _check(
        place, row, "proxy",
        lambda value: isinstance(value.get("name"), str) if isinstance(value, Mapping) else _is_fraction(value),
        "a number above 0 and at most 1, or a data set, such as {name: mnist, samples: 500}",
    )  # fmt: skip
    _check(place, row, "link", lambda value: isinstance(value, str), "the name of a link, such as metro")
    return NodeSettings(**{key: row[key] for key in _SETTINGS if key in row})


def _check(place: str, row: Mapping[str, Any], key: str, fits: Any, wanted: str) -> None:
    if key in row and not fits(row[key]):
        raise InputError(f"{place}: {key} is {row[key]!r} and must be {wanted}")


def _is_fraction(value: Any) -> bool:
    return is_number(value) and 0 < value <= 1


def _place(what: str, rows: Mapping[str, Mapping[str, Any]], devices: Sequence[str]) -> Topology:
    """The topology of nodes with parents and devices."""
    nodes = {ROOT: {}, **rows} if ROOT not in rows else rows
    check_names(nodes, devices, what)
    parents = _read_parents(what, nodes)
    below = _place_devices(what, nodes, devices)
    order, depth = [ROOT], {ROOT: 0}
    for node in order:  # grows while it is read: parents first
        for child in [name for name, parent in parents.items() if parent == node]:
            order.append(child)
            depth[child] = depth[node] + 1
    if max(depth.values()) > MAX_DEPTH:
        raise InputError(f"{what}: its nodes are nested {max(depth.values())} levels deep; {MAX_DEPTH} are possible")
    lost = [name for name in nodes if name not in depth]
    if lost:
        raise InputError(f"{what}: node '{lost[0]}' is below itself: its parents form a cycle; one must be '{ROOT}'")
    children = {node: (*(c for c in order if parents.get(c) == node), *below[node]) for node in order}
    empty = next((node for node in order if not children[node]), None)
    if empty is not None:
        raise InputError(f"{what}: node '{empty}' has neither devices nor nodes below it; give it devices or remove it")
    return Topology(children, depth)


def _read_parents(what: str, nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    parents = {}
    for name, row in nodes.items():
        if "/" in name:
            raise InputError(f"{what}: the node name '{name}' has a slash; rename it")
        if name == ROOT:
            if "parent" in row:
                raise InputError(f"{what}: node '{ROOT}' is the root and has no parent; leave it out")
            continue
        parent = str(row.get("parent", ROOT))
        if parent not in nodes:
            raise InputError(f"{what}: node '{name}': there is no parent '{parent}'; {suggest(parent, list(nodes))}")
        parents[name] = parent
    return parents


def _place_devices(
    what: str, nodes: Mapping[str, Mapping[str, Any]], devices: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    owner = _named_devices(what, nodes, devices)
    free = [device for device in devices if device not in owner]
    for name, row in nodes.items():
        count = row.get("devices", 0)
        if isinstance(count, list) or count == REST:
            continue
        if type(count) is not int or count < 0:
            raise InputError(f"{what}: node '{name}': devices is {count!r} and must be names, a number, or {REST}")
        if count > len(free):
            raise InputError(
                f"{what}: node '{name}' has {count} devices, and {len(free)} of the {len(devices)} devices are left"
            )
        owner.update(dict.fromkeys(free[:count], name))
        free = free[count:]
    takers = [name for name, row in nodes.items() if row.get("devices") == REST]
    if len(takers) > 1:
        raise InputError(f"{what}: '{takers[0]}' and '{takers[1]}' both have devices: {REST}; only one node can")
    if free and not takers:
        raise InputError(
            f"{what}: {len(free)} of {len(devices)} devices, such as '{free[0]}', are below no node; "
            f"give them to one with devices: {REST}"
        )
    owner.update((device, takers[0]) for device in free)
    return {name: tuple(device for device in devices if owner[device] == name) for name in nodes}


def _named_devices(what: str, nodes: Mapping[str, Mapping[str, Any]], devices: Sequence[str]) -> dict[str, str]:
    """The node of each device that a node lists by its name."""
    owner: dict[str, str] = {}
    known = set(devices)
    for name, row in nodes.items():
        for device in map(str, row["devices"]) if isinstance(row.get("devices"), list) else ():
            if device not in known:
                near = suggest(device, (devices[0], devices[-1]))
                raise InputError(f"{what}: node '{name}': there is no device '{device}' in the data; {near}")
            if device in owner:
                raise InputError(f"{what}: device '{device}' is below '{owner[device]}' and below '{name}'")
            owner[device] = name
    return owner


# Trees by a rule ----------------------------------------------------------------------------------------------


def _make_tree(what: str, rule: Any, devices: Sequence[str], groups: Groups | None) -> Topology:
    if isinstance(rule, Mapping) and set(rule) == {"by"}:
        fields = rule["by"] if isinstance(rule["by"], list) else [rule["by"]]
        if fields and all(isinstance(each, str) or _is_grouping(each) for each in fields):
            return _group(what, fields, devices, groups)
    elif isinstance(rule, Mapping) and {"servers"} <= set(rule) <= {"servers", "skew"}:
        widths = rule["servers"] if isinstance(rule["servers"], list) else [rule["servers"]]
        skew = rule.get("skew", 1.0)
        if not is_number(skew) or not 0 < skew <= 1:
            raise InputError(f"{what}: tree.skew is {skew!r} and must be a number above 0 and at most 1 (balanced)")
        if widths and all(type(width) is int and width > 0 for width in widths):
            sizes = _skewed_sizes(what, math.prod(widths), len(devices), float(skew))
            return build_levels(widths, sizes, devices, what)
    raise InputError(
        f"{what}: tree is {rule!r} and must be {{by: [FIELD]}}, {{by: [{{FIELD: {{GROUP: [VALUE]}}}}]}} or "
        "{servers: [4], skew: 0.5}"
    )


def _skewed_sizes(what: str, servers: int, devices: int, skew: float) -> list[int]:
    """The number of devices of each server, in proportion to powers of `skew`, at least one each."""
    if servers > devices:
        raise InputError(f"{what}: its tree has {servers} servers for {devices} devices; each needs at least one")
    weights = [skew**number for number in reversed(range(servers))]
    ideal = [(devices - servers) * weight / sum(weights) for weight in weights]
    sizes = [1 + math.floor(each + 1e-9) for each in ideal]
    by_rest = sorted(range(servers), key=lambda number: (sizes[number] - 1 - ideal[number], number))
    for number in by_rest[: devices - sum(sizes)]:
        sizes[number] += 1
    return sizes


def _is_grouping(level: Any) -> bool:
    """Whether a level is written as {FIELD: {GROUP: [VALUE, ...]}}."""
    groups = next(iter(level.values())) if isinstance(level, Mapping) and len(level) == 1 else None
    return isinstance(groups, Mapping) and bool(groups) and all(isinstance(each, list) for each in groups.values())


def _group(
    what: str, levels: Sequence[str | Mapping[str, Any]], devices: Sequence[str], groups: Groups | None
) -> Topology:
    """A level of servers for every field; a server is called after its fields and their values, or after its group."""
    if groups is None:
        raise InputError(f"{what}: tree.by needs the data set; name it, as in --data femnist")
    columns = [_labels(what, level, groups) for level in levels]
    children: dict[str, dict[str, None]] = {ROOT: {}}
    depth = {ROOT: 0}
    for device, *labels in zip(devices, *columns, strict=True):
        node = ROOT
        for level, label in enumerate(labels, 1):
            below = label if node == ROOT else f"{node}.{label}"
            children[node][below] = None
            children.setdefault(below, {})
            depth[below] = level
            node = below
        children[node][device] = None
    check_names(depth, devices, what)
    order = sorted(children, key=lambda name: (depth[name], name))
    ordered = {name: tuple(sorted(children[name]) if depth[name] < len(levels) else children[name]) for name in order}
    return Topology(ordered, {name: depth[name] for name in order})


def _labels(what: str, level: str | Mapping[str, Any], groups: Groups) -> list[str]:
    """The last part of the name of each device's server on one level."""
    if isinstance(level, str):
        return [f"{level}-{value}".replace("/", "-") for value in groups(level)]
    ((field, named),) = level.items()
    listed = [(str(value), str(group).replace("/", "-")) for group, values in named.items() for value in values]
    group_of = {"none": "none", **dict(listed)}  # none: of devices without samples
    if len(dict(listed)) < len(listed):
        raise InputError(f"{what}: tree.by: a value of {field} is in two groups or twice in one; keep it once")
    found = []
    for value in groups(field):
        if value not in group_of:
            raise InputError(
                f"{what}: tree.by: a device has the {field} '{value}', which is in none of the groups "
                f"{', '.join(map(str, named))}; add it to one"
            )
        found.append(group_of[value])
    return found
