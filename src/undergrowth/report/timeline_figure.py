"""The timeline of a run: when each device downloaded, computed and uploaded, and the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from undergrowth.exchange import Entry
from undergrowth.report.figures import OUTCOMES, Figure, add_legend, axis, build_figure, time_unit
from undergrowth.report.run_record import RunRecord, finite
from undergrowth.report.tables import count, duration

_MAX_DEVICES = 60
_MAX_ROUND_LINES = 40  # with more rounds, as in asynchronous runs, their ends are not marked
_PIXELS_PER_DEVICE = 15
_PHASES = (("download", 0.4), ("computing", 1.0), ("upload", 0.65))  # with the opacity of their bars
_DEADLINE_COLOUR, _ROUND_END_COLOUR = "#d1603d", "#8a8a8a"


def timeline_figure(record: RunRecord, label: str, tiers: Mapping[str, str]) -> Figure | None:
    """One row per device, sorted by device class. With too many devices, an even selection of them."""
    all_entries = record.activity.entries
    if not all_entries:
        return None
    known = sorted({entry.child for entry in all_entries}, key=lambda device: (tiers.get(device, ""), device))
    number = min(len(known), _MAX_DEVICES)
    shown = [known[place * len(known) // number] for place in range(number)]
    row_names = {device: f"{tiers[device]} · {device}" if device in tiers else device for device in shown}
    entries = [entry for entry in all_entries if entry.child in row_names]
    factor, unit = time_unit(max(entry.end for entry in entries))
    traces = _phase_bars(entries, row_names, factor) + _failure_marks(entries, row_names, factor)
    lines, line_legend = _round_lines(record, factor)
    x_axis = axis(f"simulated {unit}", rangemode="tozero")
    y_axis = axis(
        "", type="category", categoryorder="array", categoryarray=list(row_names.values()),
        range=[number - 0.5, -0.5], showgrid=False, tickfont={"size": 10}, dtick=1,
    )  # fmt: skip
    title = f"{label}: {_selection(len(shown), len(known), record)}"
    figure = build_figure(traces + line_legend, title, x_axis, y_axis, barmode="overlay", bargap=0.2, shapes=lines)
    figure["layout"]["height"] = max(240, 150 + _PIXELS_PER_DEVICE * len(shown))
    return add_legend(figure)


def _selection(shown: int, known: int, record: RunRecord) -> str:
    """Which devices and rounds the figure shows."""
    last, rounds = record.activity.last_round, len(record.rounds)
    devices = f"{count(shown)} of {count(known)} devices" if shown < known else f"{count(known)} devices"
    return f"{devices}, {'all' if last >= rounds else f'the first {count(last)} of {count(rounds)}'} rounds"


def _phase_bars(entries: Sequence[Entry], row_names: Mapping[str, str], factor: float) -> list[dict[str, Any]]:
    bars = []
    for outcome, colour in OUTCOMES.items():
        members = [entry for entry in entries if entry.outcome == outcome]
        if not members:
            continue
        phases = [(entry.seconds_down, entry.seconds_compute, entry.seconds_up) for entry in members]
        for place, (phase, opacity) in enumerate(_PHASES):
            timed = list(zip(members, phases, strict=True))
            bars.append({
                "type": "bar", "orientation": "h", "y": [row_names[entry.child] for entry in members], "name": outcome,
                "base": [_short((entry.start + sum(seconds[:place])) / factor) for entry, seconds in timed],
                "x": [_short(seconds[place] / factor) for seconds in phases],
                "marker": {"color": colour, "opacity": opacity, "line": {"width": 0}}, "legendgroup": outcome,
                "showlegend": phase == "computing",
                "customdata": [[_hover_text(entry), duration(seconds[place])] for entry, seconds in timed],
                "hovertemplate": f"%{{y}}<br>%{{customdata[0]}}<br>{phase}: %{{customdata[1]}}<extra></extra>",
            })  # fmt: skip
    return bars


def _failure_marks(entries: Sequence[Entry], row_names: Mapping[str, str], factor: float) -> list[dict[str, Any]]:
    """A cross where an update was given up. A device without enough memory for the work has only the cross."""
    marks = []
    for outcome, colour in OUTCOMES.items():
        members = [entry for entry in entries if entry.outcome == outcome]
        if outcome == "arrived" or not members:
            continue
        marks.append({
            "type": "scatter", "mode": "markers", "x": [_short(entry.end / factor) for entry in members],
            "y": [row_names[entry.child] for entry in members], "legendgroup": outcome, "showlegend": False,
            "marker": {"symbol": "x", "size": 5, "color": colour},
            "customdata": [_hover_text(entry) for entry in members],
            "hovertemplate": "%{y}<br>%{customdata}<extra></extra>",
        })  # fmt: skip
    return marks


def _short(value: float) -> float:
    """Seven digits, which are more than a screen shows and keep the page small."""
    return float(f"{value:.7g}")


def _hover_text(entry: Entry) -> str:
    return f"round {entry.round}: {entry.outcome}{': ' + entry.reason if entry.reason else ''}"


def _round_lines(record: RunRecord, factor: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A vertical line at the end of each round, dashed if the deadline ended it; and their traces for the legend."""
    deadline = finite(record.settings.get("fleet.deadline"))
    rows = [row for row in record.rounds if row["round"] <= record.activity.last_round]
    if len(rows) > _MAX_ROUND_LINES:
        return [], []
    lines, round_start, legend = [], 0.0, {}
    for row in rows:
        end = float(row["simulated_seconds"])
        by_deadline = bool(row["late"]) and deadline is not None and end - round_start >= deadline * (1 - 1e-9)
        round_start = end
        style = {
            "color": _DEADLINE_COLOUR if by_deadline else _ROUND_END_COLOUR, "width": 1.5,
            "dash": "dash" if by_deadline else "dot",
        }  # fmt: skip
        lines.append({
            "type": "line", "xref": "x", "yref": "paper", "x0": end / factor, "x1": end / factor, "y0": 0, "y1": 1,
            "line": style,
        })  # fmt: skip
        name = "end of a round by the deadline" if by_deadline else "end of a round"
        legend[name] = {"type": "scatter", "mode": "lines", "x": [None], "y": [None], "name": name, "line": style}
    return lines, list(legend.values())
