"""The Plotly figures of a report about rounds: curves, accuracy against costs, who came back.

A figure is the plain dictionary that plotly.js takes, so that it does not depend on the version of the Python
package. Figures that there is nothing to draw for are None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from undergrowth.report.record import Record, finite

Figure = dict[str, Any]

# Told apart by most eyes, on white and on black.
COLOURS = ("#2a9d6f", "#d1603d", "#4f7fd1", "#c79a1e", "#9a5fc0", "#2fa3b0", "#c2497a", "#8a8a8a")
_DASHES = ("solid", "dash", "dot", "dashdot")
_MOST_MARKERS = 60  # rounds; with more, markers run into one another

OUTCOMES = (
    ("arrived", "arrived", "#2a9d6f"),
    ("late", "late", "#c79a1e"),
    ("lost", "lost", "#8a8a8a"),
    ("refused", "refused", "#d1603d"),
)
_TIMES = ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"), (0.0, "milliseconds"))


def figure(data: list[dict[str, Any]], title: str, x: dict[str, Any], y: dict[str, Any], **layout: Any) -> Figure:
    """The common look; colours of text and grid are set by the page, which knows whether it is dark."""
    shown = {
        "title": {"text": title, "font": {"size": 15}, "x": 0, "xref": "paper", "xanchor": "left"},
        "margin": {"l": 64, "r": 16, "t": 44, "b": 48},
        "height": 320,
        "hovermode": "closest",
        "showlegend": False,  # the page has one for all figures, by run
        "xaxis": {"zeroline": False, "automargin": True, **x},
        "yaxis": {"zeroline": False, "automargin": True, **y},
    }
    return {"data": data, "layout": {**shown, **layout}}


def with_key(drawn: Figure) -> Figure:
    """With a legend of its own, between the title and the picture."""
    legend = {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"}
    margin = {**drawn["layout"]["margin"], "t": 72}
    drawn["layout"] |= {"showlegend": True, "legend": legend, "margin": margin}
    return drawn


def axis(words: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": words}, **more}


def run_group(place: int) -> str:
    """What all traces of a run have in common, so that the page can hide them together."""
    return f"run-{place}"


def style(place: int) -> dict[str, Any]:
    """The line of a run, by its place among the runs of a page."""
    dash = _DASHES[place // len(COLOURS) % len(_DASHES)]
    return {"color": COLOURS[place % len(COLOURS)], "dash": dash, "width": 2}


def per_round(records: Sequence[Record], labels: Sequence[str], key: str) -> Figure | None:
    """Accuracy or loss, round by round."""
    lines = []
    for place, (record, label) in enumerate(zip(records, labels)):
        x = [row["round"] for row in record.rounds]
        y = [finite(row[key]) for row in record.rounds]
        lines.append(_line(x, y, label, place, f"round %{{x}}<br>{key} %{{y:.4f}}"))
        if key == "accuracy":
            lines += _other_models(record, x, place)
    values = [value for line in lines for value in line["y"] if value is not None]
    if not values:
        return None
    # A loss that exploded would press all that came before it into a flat line.
    wide = key == "loss" and min(values) > 0 and max(values) > 1000 * min(values)
    y_axis = axis(key, type="log") if wide else axis(key, tickformat=".0%" if key == "accuracy" else "")
    rounds = max((row["round"] for record in records for row in record.rounds), default=1)
    x_axis = axis("round", dtick=1) if rounds <= 12 else axis("round")
    return figure(lines, f"{key.capitalize()} per round", x_axis, y_axis)


def against_cost(records: Sequence[Record], labels: Sequence[str], cost: str) -> Figure | None:
    """Accuracy against what had been spent by then: seconds, bytes, flops or joules."""
    spent = [[_spent(row, cost) for row in record.rounds] for record in records]
    most = max((value for values in spent for value in values if value is not None), default=0.0)
    factor, x_axis = _cost_axis(cost, most)
    lines = []
    for place, (record, label, values) in enumerate(zip(records, labels, spent)):
        x = [None if value is None else value / factor for value in values]
        y = [finite(row["accuracy"]) for row in record.rounds]
        about = "%{x:.4~s} · accuracy %{y:.4f}<br>round %{customdata}"
        lines.append({**_line(x, y, label, place, about), "customdata": [row["round"] for row in record.rounds]})
    if not any(value is not None for line in lines for value in line["y"]):
        return None
    title = {"seconds": "simulated time", "bytes": "bytes sent", "flops": "computation", "joules": "energy"}[cost]
    return figure(lines, f"Accuracy against {title}", x_axis, axis("accuracy", tickformat=".0%"))


def outcomes(record: Record, label: str) -> Figure | None:
    """How many devices came back in every round, and what became of the others."""
    if not record.rounds:
        return None
    x = [row["round"] for row in record.rounds]
    bars = []
    for key, words, colour in OUTCOMES:
        numbers = [row[key] or 0 for row in record.rounds]
        if key != "arrived" and not any(numbers):
            continue
        about = f"round %{{x}}<br>%{{y}} {words}<extra></extra>"
        bars.append({
            "type": "bar", "x": x, "y": numbers, "name": words, "marker": {"color": colour}, "hovertemplate": about,
        })  # fmt: skip
    x_axis = axis("round", dtick=1) if len(x) <= 12 else axis("round")
    drawn = figure(bars, label, x_axis, axis("devices", rangemode="tozero"), barmode="stack", bargap=0.15)
    return with_key(drawn) if len(bars) > 1 else drawn


def _line(x: list[Any], y: list[Any], label: str, place: int, about: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(x) <= _MOST_MARKERS else "lines",
        "x": x, "y": y, "name": label, "legendgroup": run_group(place), "line": style(place),
        "marker": {"size": 6},
        "hovertemplate": about + "<extra></extra>",
    }  # fmt: skip


def _other_models(record: Record, x: list[Any], place: int) -> list[dict[str, Any]]:
    """Models that the method names beside the global one, thin and dotted."""
    names = list(dict.fromkeys(key for row in record.rounds for key in row if key.startswith("accuracy/")))
    lines = []
    for name in names[:8]:
        y = [finite(row.get(name)) for row in record.rounds]
        short = name.removeprefix("accuracy/")
        line = _line(x, y, short, place, f"{short}<br>round %{{x}}<br>accuracy %{{y:.4f}}")
        lines.append({**line, "mode": "lines", "line": {**style(place), "width": 1, "dash": "dot"}})
    return lines


def _spent(row: dict[str, Any], cost: str) -> float | None:
    if cost == "bytes":
        down, up = finite(row["bytes_down"]), finite(row["bytes_up"])
        return None if down is None or up is None else down + up
    return finite(row["simulated_seconds" if cost == "seconds" else cost])


def time_unit(most: float) -> tuple[float, str]:
    """Seconds of the unit that the longest time is best given in, and its name."""
    least, unit = next((least, unit) for least, unit in _TIMES if most >= least)
    return least or 1e-3, unit


def _cost_axis(cost: str, most: float) -> tuple[float, dict[str, Any]]:
    """What to divide by, and the axis; plotly's SI prefixes do for all but time."""
    if cost == "seconds":
        factor, unit = time_unit(most)
        return factor, axis(f"simulated {unit}", rangemode="tozero")
    words = {"bytes": "bytes, down and up", "flops": "FLOPs on devices", "joules": "joules on devices"}[cost]
    suffix = {"bytes": "B", "flops": "", "joules": "J"}[cost]
    return 1.0, axis(words, tickformat="~s", ticksuffix=suffix, rangemode="tozero")
