"""Plotly figures about rounds: learning curves, accuracy against cost, outcomes per round.

A figure is the plain dictionary that plotly.js reads, so that it does not depend on the version of the Python package.
Functions return None if there is nothing to draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from undergrowth.report.run_record import RunRecord, finite

Figure = dict[str, Any]

# Distinguishable for most readers, on a white and on a black background.
COLOURS = ("#2a9d6f", "#d1603d", "#4f7fd1", "#c79a1e", "#9a5fc0", "#2fa3b0", "#c2497a", "#8a8a8a")
_DASHES = ("solid", "dash", "dot", "dashdot")
_MAX_ROUNDS_WITH_MARKERS = 60  # with more rounds, markers overlap
_MAX_ROUNDS_WITH_TICKS = 12  # one tick per round
_MAX_OTHER_MODELS = 8

OUTCOMES = {"arrived": "#2a9d6f", "late": "#c79a1e", "lost": "#8a8a8a", "refused": "#d1603d"}  # with their colours
_TIME_UNITS = ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"), (0.0, "milliseconds"))


def build_figure(data: list[dict[str, Any]], title: str, x: dict[str, Any], y: dict[str, Any], **layout: Any) -> Figure:
    """A figure in the style of all pages. The page's script sets the colours of text and grid, light or dark."""
    base = {
        "title": {"text": title, "font": {"size": 15}, "x": 0, "xref": "paper", "xanchor": "left"},
        "margin": {"l": 64, "r": 16, "t": 44, "b": 48},
        "height": 320,
        "hovermode": "closest",
        "showlegend": False,  # the page has one legend of runs for all figures
        "xaxis": {"zeroline": False, "automargin": True, **x},
        "yaxis": {"zeroline": False, "automargin": True, **y},
    }
    return {"data": data, "layout": {**base, **layout}}


def add_legend(figure: Figure) -> Figure:
    """`figure` with its own legend between the title and the plot."""
    legend = {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"}
    margin = {**figure["layout"]["margin"], "t": 72}
    figure["layout"] |= {"showlegend": True, "legend": legend, "margin": margin}
    return figure


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **more}


def legend_group(place: int) -> str:
    """The group of all traces of a run, which the page hides and shows together."""
    return f"run-{place}"


def colour(place: int) -> str:
    """The colour of a run, by its place among the runs of a page."""
    return COLOURS[place % len(COLOURS)]


def line_style(place: int) -> dict[str, Any]:
    """The line of a run, by its place among the runs of a page."""
    return {"color": colour(place), "dash": _DASHES[place // len(COLOURS) % len(_DASHES)], "width": 2}


def metric_per_round(records: Sequence[RunRecord], labels: Sequence[str], metric: str) -> Figure | None:
    """`metric` (accuracy or loss) by round."""
    lines = []
    for place, (record, label) in enumerate(zip(records, labels, strict=True)):
        x = [row["round"] for row in record.rounds]
        y = [finite(row[metric]) for row in record.rounds]
        lines.append(_line(x, y, label, place, f"round %{{x}}<br>{metric} %{{y:.4f}}"))
        if metric == "accuracy":
            lines += _other_models(record, x, place)
    values = [value for line in lines for value in line["y"] if value is not None]
    if not values:
        return None
    # On a linear axis, a diverged loss would make all earlier values look equal.
    logarithmic = metric == "loss" and min(values) > 0 and max(values) > 1000 * min(values)
    y_axis = axis(metric, type="log") if logarithmic else axis(metric, tickformat=".0%" if metric == "accuracy" else "")
    rounds = max((row["round"] for record in records for row in record.rounds), default=1)
    return build_figure(lines, f"{metric.capitalize()} per round", _round_axis(rounds), y_axis)


def accuracy_against_cost(records: Sequence[RunRecord], labels: Sequence[str], cost: str) -> Figure | None:
    """Accuracy against the `cost` up to each round: seconds, bytes, flops or joules."""
    costs = [[cost_of(row, cost) for row in record.rounds] for record in records]
    highest = max((value for values in costs for value in values if value is not None), default=0.0)
    factor, x_axis = _cost_axis(cost, highest)
    lines = []
    for place, (record, label, values) in enumerate(zip(records, labels, costs, strict=True)):
        x = [None if value is None else value / factor for value in values]
        y = [finite(row["accuracy"]) for row in record.rounds]
        hover = "%{x:.4~s} · accuracy %{y:.4f}<br>round %{customdata}"
        lines.append({**_line(x, y, label, place, hover), "customdata": [row["round"] for row in record.rounds]})
    if not any(value is not None for line in lines for value in line["y"]):
        return None
    title = {"seconds": "simulated time", "bytes": "bytes sent", "flops": "computation", "joules": "energy"}[cost]
    return build_figure(lines, f"Accuracy against {title}", x_axis, axis("accuracy", tickformat=".0%"))


def outcomes_per_round(record: RunRecord, label: str) -> Figure | None:
    """The number of devices in each round, by outcome."""
    if not record.rounds:
        return None
    x = [row["round"] for row in record.rounds]
    bars = []
    for outcome, bar_colour in OUTCOMES.items():
        numbers = [row[outcome] or 0 for row in record.rounds]
        if outcome != "arrived" and not any(numbers):
            continue
        bars.append({
            "type": "bar", "x": x, "y": numbers, "name": outcome, "marker": {"color": bar_colour},
            "hovertemplate": f"round %{{x}}<br>%{{y}} {outcome}<extra></extra>",
        })  # fmt: skip
    y_axis = axis("devices", rangemode="tozero")
    figure = build_figure(bars, label, _round_axis(len(x)), y_axis, barmode="stack", bargap=0.15)
    return add_legend(figure) if len(bars) > 1 else figure


def time_unit(longest: float) -> tuple[float, str]:
    """Seconds per unit, and the name of the unit in which `longest` seconds are best written."""
    seconds, unit = next((seconds, unit) for seconds, unit in _TIME_UNITS if longest >= seconds)
    return seconds or 1e-3, unit


def _round_axis(rounds: int) -> dict[str, Any]:
    return axis("round", dtick=1) if rounds <= _MAX_ROUNDS_WITH_TICKS else axis("round")


def _line(x: list[Any], y: list[Any], label: str, place: int, hover: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(x) <= _MAX_ROUNDS_WITH_MARKERS else "lines",
        "x": x, "y": y, "name": label, "legendgroup": legend_group(place), "line": line_style(place),
        "marker": {"size": 6},
        "hovertemplate": hover + "<extra></extra>",
    }  # fmt: skip


def _other_models(record: RunRecord, x: list[Any], place: int) -> list[dict[str, Any]]:
    """Thin dotted lines for the models that a method evaluates besides the global one."""
    names = list(dict.fromkeys(key for row in record.rounds for key in row if key.startswith("accuracy/")))
    lines = []
    for name in names[:_MAX_OTHER_MODELS]:
        y = [finite(row.get(name)) for row in record.rounds]
        short = name.removeprefix("accuracy/")
        line = _line(x, y, short, place, f"{short}<br>round %{{x}}<br>accuracy %{{y:.4f}}")
        lines.append({**line, "mode": "lines", "line": {**line_style(place), "width": 1, "dash": "dot"}})
    return lines


def cost_of(row: dict[str, Any], cost: str) -> float | None:
    """The `cost` of a round or a device; None if it is unknown, as for a device that never took part."""
    if cost == "bytes":
        down, up = finite(row.get("bytes_down")), finite(row.get("bytes_up"))
        return None if down is None or up is None else down + up
    return finite(row.get("simulated_seconds" if cost == "seconds" else cost))


def _cost_axis(cost: str, highest: float) -> tuple[float, dict[str, Any]]:
    """The divisor for values of `cost`, and their axis. SI prefixes of plotly are used for everything but time."""
    if cost == "seconds":
        factor, unit = time_unit(highest)
        return factor, axis(f"simulated {unit}", rangemode="tozero")
    title = {"bytes": "bytes, down and up", "flops": "FLOPs on devices", "joules": "joules on devices"}[cost]
    suffix = {"bytes": "B", "flops": "", "joules": "J"}[cost]
    return 1.0, axis(title, tickformat="~s", ticksuffix=suffix, rangemode="tozero")
