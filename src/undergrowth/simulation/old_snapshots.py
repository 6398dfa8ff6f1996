"""Snapshots of earlier formats, brought to the present one, so that their runs can be resumed."""

from __future__ import annotations

from typing import Any

from undergrowth.core import InputError, State


def upgrade_from_1(snapshot: State) -> State:
    """Format 1 told events of one ask from those of another by tickets; format 2 has ids of asks."""
    ids = {
        child: (child, round, node["_turns"][child] - 1)
        for node in snapshot["nodes"].values()
        for child, round in node["_out"].items()
    }
    tickets = {child: ask["ticket"] for child, ask in snapshot["exchanges"].items()}
    clock = {"drawn": "used"}
    return {
        **{name: snapshot[name] for name in ("now", "jobs_done", "work_seconds", "totals", "waiting")},
        # A node without rounds left has not been told of the open ask of its parent yet.
        "nodes": {
            name: _node(node, ids.get(name) if node["left"] else None) for name, node in snapshot["nodes"].items()
        },
        "clock": {clock.get(name, name): value for name, value in snapshot["clock"].items()},
        "order": snapshot["tickets"],
        "events": [_event(event, ids) for event in snapshot["events"] if _is_current(event, tickets)],
        "asks": {child: _ask(ask, ids[child]) for child, ask in snapshot["exchanges"].items()},
        "combined": {node: [_outcome(one) for one in outcomes] for node, outcomes in snapshot["folded"].items()},
    }


def upgrade_from_2(snapshot: State) -> State:
    """In format 2, the first rounds of `fedft` could be warm rounds, and uploads of such a round say so.

    The round after them asked all devices; a run that was stopped before it continues with an ordinary round.
    """
    if any(node["state"].get("phase") == "warm" for node in snapshot["nodes"].values() if node["asked_by"] is None):
        raise InputError(
            "the run was stopped before its method had done its warm rounds, and these now come before the first "
            "round; start a new run with start.warm_rounds"
        )
    return {**snapshot, "nodes": {name: _without_warm_uploads(node) for name, node in snapshot["nodes"].items()}}


def _without_warm_uploads(node: State) -> State:
    heard = {child: scalars for child, scalars in node["heard"].items() if "warm" not in scalars}
    return {**node, "heard": heard}


def _node(node: State, asked_by: tuple[str, int, int] | None) -> State:
    """`asked_by`: the ask of the parent that the node works for."""
    renamed = {"_asks": "plans", "_total": "partial"}
    new = {renamed.get(name, name.lstrip("_")): value for name, value in node.items()}
    out = {child: (child, round, node["_turns"][child] - 1) for child, round in node["_out"].items()}
    answered = {child: turns - 1 for child, turns in node["_turns"].items() if child not in out}
    return {**new, "out": out, "answered": answered, "asked_by": asked_by}


def _is_current(event: list[Any], tickets: dict[str, int]) -> bool:
    _, ticket, kind, _, content = event
    return kind not in ("upload", "lost") or tickets.get(content) == ticket


def _event(event: list[Any], ids: dict[str, tuple[str, int, int]]) -> list[Any]:
    time, order, kind, node, content = event
    if kind in ("upload", "lost"):
        return [time, order, "device answers", node, ids[content]]
    if kind == "packet":
        return [time, order, "ask", node, (ids[node], content)]
    if kind == "report":
        child, packet = content
        answer = ("lost", "none of its children came back") if packet is None else ("partial", packet)
        return [time, order, "node answers", node, (ids[child], answer)]
    return [time, order, "deadline" if kind == "alarm" else kind, node, content]


def _ask(ask: State, id: tuple[str, int, int]) -> State:
    job, outcome = ask["job"], ask["outcome"]
    kept = {name: value for name, value in ask.items() if name != "ticket"}
    job = job and {"combine" if name == "fold" else name: value for name, value in job.items()}
    return {**kept, "order": ask["ticket"], "id": id, "job": job, "outcome": outcome and _outcome(outcome)}


def _outcome(outcome: State) -> State:
    return {"combined" if name == "folded" else name: value for name, value in outcome.items()}
