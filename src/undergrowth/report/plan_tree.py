"""The second table of a plan, for a tree: what the links between servers carry, and the time of a round by level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from undergrowth.report.tables import WideOrNarrow, count, duration, energy, size, stackable_table
from undergrowth.runs.planning import Row

TREE_COLUMNS = ("method", "level", "servers", "children", "link", "down", "up", "round", "network", "late")
_STACKED = ((0,), (1,), (2, 3), (4,), (5, 6), (7, 8), (9,))  # columns that share the width of one in a narrow terminal
RELAYED = "Relayed: if no server combined uploads, and the packets of every device crossed every link, as in a star."
ONCE = "the table of devices has the price of one."
ROOT = "With an asynchronous root, all figures are means over its rounds, and asks go on from one to the next."
BELOW = "An asynchronous server answers after its own number of answers; it gives up the children that still work then."


def tree_cells(row: Row) -> tuple[Any, ...]:
    """The formatted cells of a row."""
    return (
        row["method"], row["level"], count(row["servers"]), count(row["children"]), row["link"],
        size(row["bytes_down"]), size(row["bytes_up"]), duration(row["seconds"]), energy(row["joules"]),
        count(row["late"]),
    )  # fmt: skip


def relayed_cells(row: Row) -> tuple[Any, ...]:
    """The cells of the line below a row: the same links and times without servers that combine."""
    return (
        "", "", "", "", "  relayed", size(row["relay_bytes_down"]), size(row["relay_bytes_up"]),
        duration(row["relay_seconds"]), energy(row["relay_joules"]), "",
    )  # fmt: skip


def tree_lines(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """The lines of the table: two for each level whose children are servers, one for the last."""
    lines = []
    for row in rows:
        lines.append(tree_cells(row))
        if row["joules"] is not None:
            lines.append(relayed_cells(row))
    return lines


def tree_table(rows: Sequence[Row]) -> WideOrNarrow:
    """The levels of servers of each method, the root first."""
    right = (*range(1, 4), *range(5, len(TREE_COLUMNS)))
    return stackable_table(TREE_COLUMNS, tree_lines(rows), _STACKED, right)


def explain_tree(rows: Sequence[Row]) -> str:
    """The sentences below the table: what its figures mean."""
    sentences = [RELAYED]
    if any(row["asynchronous"] for row in rows if not row["level"]):
        sentences.append(ROOT)
    if any(row["asynchronous"] for row in rows if row["level"]):
        sentences.append(BELOW)
    rounds = max((row["rounds"] for row in rows), default=1)
    if rounds > 1:
        sentences.append(f"In a round of the root, the servers above devices do up to {rounds} rounds; {ONCE}")
    training = sum(row["server_joules"] for row in rows)
    if training:
        sentences.append(f"What servers train in a round of the root takes {energy(training)}; the times contain it.")
    return " ".join(sentences)


def advise_tree(rows: Sequence[Row], method: str) -> list[str]:
    """A sentence about what the servers of a tree save on the links to the root; none for a star."""
    root = next((row for row in rows if row["method"] == method and row["level"] == 0), None)
    if root is None:
        return []
    carried, relayed = (root[f"{kind}bytes_down"] + root[f"{kind}bytes_up"] for kind in ("", "relay_"))
    if not carried:
        return []
    return [
        f"With {method}, the links to the root carry {size(carried)} a round, and {size(relayed)} if the packets of "
        f"all devices crossed them ({relayed / carried:.3g} times as much); a round takes {duration(root['seconds'])} "
        f"instead of {duration(root['relay_seconds'])}."
    ]
