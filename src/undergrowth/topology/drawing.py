"""Drawings of a topology, for the terminal and as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from rich.tree import Tree

from undergrowth.topology.topology import ROOT, Topology

MAX_DEVICES = 4  # shown below one node; of more, the first and the last
ROW, INDENT, CHARACTER = 22, 26, 7.2  # pixels


def draw_text(topology: Topology) -> Tree:
    """The topology as a tree for a terminal."""
    (_, label, _), *others = rows(topology)
    path = [Tree(label)]  # from the root to the last node
    for depth, label, _ in others:
        del path[depth:]
        path.append(path[-1].add(label))
    return path[0]


def draw_svg(topology: Topology, notes: Mapping[str, str] | None = None) -> str:
    """The topology as an SVG image: a line for every node, with its note, and for some devices of each."""
    lines = list(rows(topology, notes))
    width = max(depth * INDENT + len(label) * CHARACTER for depth, label, _ in lines) + 2 * INDENT
    height = (len(lines) + 1) * ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
        f'height="{height}" font-family="sans-serif" font-size="13">',
        f"<title>{escape(summary(topology))}</title>",
    ]
    last: dict[int, int] = {}  # depth → row of the last node there
    for row, (depth, label, node) in enumerate(lines, 1):
        x, y = depth * INDENT + INDENT / 2, row * ROW
        if depth:
            above_x, above_y = (depth - 1) * INDENT + INDENT / 2, last[depth - 1] * ROW
            parts.append(f'<path d="M{above_x:g} {above_y}V{y}H{x:g}" fill="none" stroke="#999"/>')
        if node:
            last[depth] = row
        square, circle = f'<rect x="{x - 5:g}" y="{y - 5}" width="10" height="10"', f'<circle cx="{x:g}" cy="{y}" r="4"'
        shape = square if node else circle
        parts.append(f'{shape} fill="{"#3b6ea5" if node else "#6a9c4a"}"/>')
        parts.append(f'<text x="{x + 10:g}" y="{y + 4}">{escape(label)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def rows(topology: Topology, notes: Mapping[str, str] | None = None) -> Iterator[tuple[int, str, bool]]:
    """Depth, label, and whether it is a node, from the root down; of many devices below a node only some."""

    def visit(node: str, depth: int) -> Iterator[tuple[int, str, bool]]:
        settings = [f"{name} {_value(value)}" for name, value in topology.of(node).given.items()]
        settings += [notes[node]] if notes and node in notes else []
        yield depth, f"{node}  ({', '.join(settings)})" if settings else node, True
        below = topology.children[node]
        for child in (child for child in below if child in topology.children):
            yield from visit(child, depth + 1)
        devices = [child for child in below if child not in topology.children]
        if len(devices) <= MAX_DEVICES:
            yield from ((depth + 1, device, False) for device in devices)
        else:
            yield depth + 1, f"{len(devices)} devices, {devices[0]} … {devices[-1]}", False

    yield from visit(ROOT, 0)


def summary(topology: Topology) -> str:
    """The numbers of servers, levels and devices in words."""
    servers = len(topology.children)
    devices = sum(child not in topology.children for below in topology.children.values() for child in below)
    levels = max(topology.depth.values()) + 1
    return f"{_count(devices, 'device')} below {_count(servers, 'server')} on {_count(levels, 'level')}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return str(value["name"])  # a data set
    return str(value).lower() if isinstance(value, bool | str) else f"{value:g}"
