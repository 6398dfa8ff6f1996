"""The timeline of a run: who worked when, from download to upload, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from undergrowth.exchange import Entry
from undergrowth.report.figures import OUTCOMES, Figure, axis, figure, time_unit, with_key
from undergrowth.report.record import Record, finite
from undergrowth.report.tables import count, duration

_MOST_DEVICES = 60
_MOST_LINES = 40  # ends of rounds; an asynchronous run has one for every few uploads
_ROW = 15  # pixels for a device
_PHASES = (("download", 0.4), ("computing", 1.0), ("upload", 0.65))  # with how strong the colour is
_DEADLINE, _ROUND_END = "#d1603d", "#8a8a8a"


def timeline(record: Record, label: str, tiers: Mapping[str, str]) -> Figure | None:
    """One row per device, those of a class together."""
    beginning = record.traffic.beginning
    if not beginning:
        return None
    known = sorted({entry.child for entry in beginning}, key=lambda device: (tiers.get(device, ""), device))
    number = min(len(known), _MOST_DEVICES)
    shown = [known[place * len(known) // number] for place in range(number)]
    names = {device: f"{tiers[device]} · {device}" if device in tiers else device for device in shown}
    entries = [entry for entry in beginning if entry.child in names]
    factor, unit = time_unit(max(entry.end for entry in entries))
    traces = _bars(entries, names, factor) + _misses(entries, names, factor)
    lines, keys = _lines(record, factor)
    x_axis = axis(f"simulated {unit}", rangemode="tozero")
    y_axis = axis(
        "", type="category", categoryorder="array", categoryarray=list(names.values()),
        range=[number - 0.5, -0.5], showgrid=False, tickfont={"size": 10}, dtick=1,
    )  # fmt: skip
    title = f"{label}: {_which(len(shown), len(known), record)}"
    drawn = figure(traces + keys, title, x_axis, y_axis, barmode="overlay", bargap=0.2, shapes=lines)
    drawn["layout"]["height"] = max(240, 150 + _ROW * len(shown))
    return with_key(drawn)


def _which(shown: int, known: int, record: Record) -> str:
    last, rounds = record.traffic.last_round, len(record.rounds)
    devices = f"{count(shown)} of {count(known)} devices, evenly chosen" if shown < known else f"{count(known)} devices"
    return f"{devices}, {'all' if last >= rounds else f'the first {count(last)} of {count(rounds)}'} rounds"


def _bars(entries: Sequence[Entry], names: Mapping[str, str], factor: float) -> list[dict[str, Any]]:
    found = []
    for outcome, words, colour in OUTCOMES:
        members = [entry for entry in entries if entry.outcome == outcome]
        if not members:
            continue
        for place, (phase, strength) in enumerate(_PHASES):
            times = [(entry.seconds_down, entry.seconds_compute, entry.seconds_up) for entry in members]
            starts = [entry.start + sum(parts[:place]) for entry, parts in zip(members, times)]
            found.append({
                "type": "bar", "orientation": "h", "y": [names[entry.child] for entry in members], "name": words,
                "base": [start / factor for start in starts], "x": [parts[place] / factor for parts in times],
                "marker": {"color": colour, "opacity": strength, "line": {"width": 0}}, "legendgroup": words,
                "showlegend": phase == "computing",
                "customdata": [[_about(entry), duration(parts[place])] for entry, parts in zip(members, times)],
                "hovertemplate": f"%{{y}}<br>%{{customdata[0]}}<br>{phase}: %{{customdata[1]}}<extra></extra>",
            })  # fmt: skip
    return found


def _misses(entries: Iterable[Entry], names: Mapping[str, str], factor: float) -> list[dict[str, Any]]:
    """A mark where an update was given up: a device that cannot hold the work has no bar at all."""
    found = []
    for outcome, words, colour in OUTCOMES:
        members = [entry for entry in entries if entry.outcome == outcome]
        if outcome == "arrived" or not members:
            continue
        found.append({
            "type": "scatter", "mode": "markers", "x": [entry.end / factor for entry in members],
            "y": [names[entry.child] for entry in members], "legendgroup": words, "showlegend": False,
            "marker": {"symbol": "x", "size": 5, "color": colour}, "customdata": [_about(entry) for entry in members],
            "hovertemplate": "%{y}<br>%{customdata}<extra></extra>",
        })  # fmt: skip
    return found


def _about(entry: Entry) -> str:
    return f"round {entry.round}: {entry.outcome}{': ' + entry.reason if entry.reason else ''}"


def _lines(record: Record, factor: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Where rounds ended, marked where the deadline ended them; and what to say about them beside the picture."""
    deadline = finite(record.settings.get("fleet.deadline"))
    rows = [row for row in record.rounds if row["round"] <= record.traffic.last_round]
    if len(rows) > _MOST_LINES:
        return [], []
    lines, before, colours = [], 0.0, {}
    for row in rows:
        end = float(row["simulated_seconds"])
        by_deadline = bool(row["late"]) and deadline is not None and end - before >= deadline * (1 - 1e-9)
        colour, before = _DEADLINE if by_deadline else _ROUND_END, end
        colours[colour] = "the deadline ends a round" if by_deadline else "a round ends"
        lines.append({
            "type": "line", "xref": "x", "yref": "paper", "x0": end / factor, "x1": end / factor, "y0": 0, "y1": 1,
            "line": {"color": colour, "width": 1.5, "dash": "dash" if by_deadline else "dot"},
        })  # fmt: skip
    keys = [
        {
            "type": "scatter", "mode": "lines", "x": [None], "y": [None], "name": words,
            "line": {"color": colour, "width": 1.5, "dash": "dash" if colour == _DEADLINE else "dot"},
        }
        for colour, words in colours.items()
    ]  # fmt: skip
    return lines, keys
