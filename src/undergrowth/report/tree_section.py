"""The section of a report about the models of the nodes of a tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from undergrowth.report.html import Page
from undergrowth.report.tables import count, score
from undergrowth.topology import Topology, draw_svg


def add_tree(page: Page, label: str, tree: Mapping[str, Any]) -> None:
    """The tree with the accuracies of its nodes, and accuracy against the distance from the device."""
    nodes: Sequence[Mapping[str, Any]] = tree["nodes"]
    page.section(
        f"Servers of {label}",
        f"The {tree['metric']} of each server's model on the central test set and on those of the devices below.",
    )
    names = {row["node"] for row in nodes}
    children = {name: tuple(row["node"] for row in nodes if row["parent"] == name) for name in names}
    notes = {row["node"]: _note(tree["metric"], row) for row in nodes}
    page.add(draw_svg(Topology(children, {row["node"]: row["depth"] for row in nodes}), notes))
    rows = [(_place(row["distance"]), score(row["score"]), count(row["devices"])) for row in tree["distances"]]
    page.text(
        f"Mean {tree['metric']} on a device's own test samples, by the number of links to the model that it uses."
    )
    page.table(["model", tree["metric"], "devices"], rows)


def _note(metric: str, row: Mapping[str, Any]) -> str:
    parts = [f"{metric} {score(row['score'])}"]
    if row["score_below"] is not None:
        parts.append(f"below {score(row['score_below'])}")
    if row["score_proxy"] is not None:
        parts.append(f"proxy data {score(row['score_proxy'])}")
    if row["devices"]:
        parts.append(f"{count(row['devices'])} devices")
    return ", ".join(parts)


def _place(distance: int) -> str:
    return "of the device" if distance == 0 else f"{distance} link{'s' if distance > 1 else ''} above"
