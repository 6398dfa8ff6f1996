"""Learning curves of groups of runs: a metric or the loss against rounds, simulated time, bytes, computation, energy.

The curve of several runs is the mean of their curves, each drawn with straight lines between its points, with a band of
one standard deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undergrowth.core.task_kind import FRACTIONS
from undergrowth.report.figures import (
    Figure,
    axis,
    build_figure,
    colour,
    cost_of,
    legend_group,
    line_style,
    round_axis,
    time_unit,
)
from undergrowth.report.groups import Group
from undergrowth.report.run_record import RunRecord, finite

_MAX_ROUNDS_WITH_MARKERS = 60  # with more rounds, markers overlap
_MAX_POINTS_OF_A_MEAN = 200
_MAX_OTHER_MODELS = 8
_BAND_OPACITY = 0.18
_MAX_VALUE = 1e100  # the squares of larger losses have no deviation
Array = NDArray[Any]
Points = tuple[list[float], list[float]]  # x and y; x ascends


@dataclass(frozen=True)
class Curve:
    """The mean of the curves of some runs, and its deviation; no deviation for one run."""

    x: Array
    y: Array
    deviation: Array | None
    runs: int


def metric_per_round(groups: Sequence[Group], metric: str) -> Figure | None:
    """`metric`, a figure of the history, by round."""
    hover = f"round %{{x}}<br>{metric} %{{y:.4f}}"
    traces = []
    for place, group in enumerate(groups):
        traces += _traces(group.label, place, mean_curve(_points(group, metric)), hover)
        traces += _other_models(group, place, metric)
    values = [value for trace in traces if "fill" not in trace for value in trace["y"]]
    if not values:
        return None
    # On a linear axis, a diverged loss would make all earlier values look equal.
    logarithmic = metric in ("loss", "perplexity", "mse") and min(values) > 0 and max(values) > 1000 * min(values)
    if logarithmic:  # such an axis has no place for the part of a band below 0
        traces = [{**trace, "y": [max(value, min(values)) for value in trace["y"]]} for trace in traces]
    y_axis = axis(metric, type="log") if logarithmic else _value_axis(metric)
    rounds = max(row["round"] for group in groups for record in group.records for row in record.rounds)
    return build_figure(traces, f"{metric.capitalize()} per round", round_axis(rounds), y_axis)


def _value_axis(metric: str) -> dict[str, Any]:
    """An axis in per cent for metrics from 0 to 1, such as the accuracy."""
    return axis(metric, tickformat=".1~%" if metric in FRACTIONS else "")


def metric_against_cost(groups: Sequence[Group], metric: str, cost: str) -> Figure | None:
    """`metric` against the `cost` up to each round: seconds, bytes, flops or joules."""
    curves = [mean_curve(_points(group, metric, cost)) for group in groups]
    highest = max((float(curve.x[-1]) for curve in curves if curve), default=0.0)
    factor, x_axis = _cost_axis(cost, highest)
    traces = []
    for place, (group, curve) in enumerate(zip(groups, curves, strict=True)):
        traces += _traces(group.label, place, curve, f"%{{x:.4~s}} · {metric} %{{y:.4f}}", factor)
    if not traces:
        return None
    title = {"seconds": "simulated time", "bytes": "bytes sent", "flops": "computation", "joules": "energy"}[cost]
    return build_figure(traces, f"{metric.capitalize()} against {title}", x_axis, _value_axis(metric))


def mean_curve(runs: Sequence[Points]) -> Curve | None:
    """The mean of the curves `runs` where all of them are known; None if none has a point.

    Runs that have no value in common, such as runs of one round that took different times, are one point: the mean of
    their last points.
    """
    known = [(np.array(x, dtype=float), np.array(y, dtype=float)) for x, y in runs if x]
    if not known:
        return None
    if len(known) == 1:
        return Curve(*known[0], None, 1)
    first, last = max(x[0] for x, _ in known), min(x[-1] for x, _ in known)
    if first > last:
        known = [(x[-1:], y[-1:]) for x, y in known]
        places = np.mean([x for x, _ in known], axis=0)  # beside a curve of one point, its value is that of the point
    else:
        places = np.unique(np.concatenate([x for x, _ in known]))
        places = places[(places >= first) & (places <= last)]
    if len(places) > _MAX_POINTS_OF_A_MEAN:
        places = np.linspace(first, last, _MAX_POINTS_OF_A_MEAN)
    values = np.stack([np.interp(places, x, np.clip(y, -_MAX_VALUE, _MAX_VALUE)) for x, y in known])
    return Curve(places, values.mean(axis=0), values.std(axis=0, ddof=1), len(known))


def _points(group: Group, metric: str, cost: str | None = None) -> list[Points]:
    """The points of every run: `metric` against rounds, or against `cost`, where both are finite numbers."""
    return [_points_of(record, metric, cost) for record in group.records]


def _points_of(record: RunRecord, metric: str, cost: str | None) -> Points:
    x, y = [], []
    for row in record.rounds:
        at, value = float(row["round"]) if cost is None else cost_of(row, cost), finite(row.get(metric))
        if at is not None and value is not None:
            x.append(at)
            y.append(value)
    return x, y


def _traces(label: str, place: int, curve: Curve | None, hover: str, factor: float = 1.0) -> list[dict[str, Any]]:
    """The line of a curve, and before it the band of one deviation above and below."""
    if curve is None:
        return []
    x, runs = curve.x / factor, "" if curve.runs == 1 else f"<br>mean of {curve.runs} runs"
    traces = []
    if curve.deviation is not None:
        low, high = curve.y - curve.deviation, curve.y + curve.deviation
        traces.append({
            "type": "scatter", "mode": "lines", "x": plain([*x, *x[::-1]]), "y": plain([*low, *high[::-1]]),
            "fill": "toself", "fillcolor": transparent(colour(place)), "line": {"width": 0, "color": colour(place)},
            "hoverinfo": "skip", "name": label, "legendgroup": legend_group(place),
        })  # fmt: skip
    traces.append({
        "type": "scatter", "mode": "lines+markers" if len(x) <= _MAX_ROUNDS_WITH_MARKERS else "lines",
        "x": plain(x), "y": plain(curve.y), "name": label, "legendgroup": legend_group(place),
        "line": line_style(place), "marker": {"size": 6 if curve.deviation is None else 4},
        "hovertemplate": f"{hover}{runs}<extra></extra>",
    })  # fmt: skip
    return traces


def _other_models(group: Group, place: int, metric: str) -> list[dict[str, Any]]:
    """Thin dotted lines for the models that a method evaluates besides the global one."""
    rows = [row for record in group.records for row in record.rounds]
    names = list(dict.fromkeys(key for row in rows for key in row if key.startswith(f"{metric}/")))
    lines = []
    for name in names[:_MAX_OTHER_MODELS]:
        short = name.removeprefix(f"{metric}/")
        hover = f"{short}<br>round %{{x}}<br>{metric} %{{y:.4f}}"
        lines += _traces(short, place, mean_curve(_points(group, name)), hover)[-1:]
    return [{**line, "mode": "lines", "line": {**line_style(place), "width": 1, "dash": "dot"}} for line in lines]


def plain(values: Any) -> list[float]:
    """Plain numbers of six digits, which are enough for a figure and keep pages small."""
    return [int(value) if value == int(value) else float(f"{value:.6g}") for value in values]


def transparent(hexadecimal: str) -> str:
    """A colour such as #2a9d6f with the opacity of bands."""
    red, green, blue = (int(hexadecimal[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{_BAND_OPACITY})"


def _cost_axis(cost: str, highest: float) -> tuple[float, dict[str, Any]]:
    """The divisor for values of `cost`, and their axis. SI prefixes of plotly are used for everything but time."""
    if cost == "seconds":
        factor, unit = time_unit(highest)
        return factor, axis(f"simulated {unit}", rangemode="tozero")
    title = {"bytes": "bytes, down and up", "flops": "FLOPs on devices", "joules": "joules on devices"}[cost]
    suffix = {"bytes": "B", "flops": "", "joules": "J"}[cost]
    return 1.0, axis(title, tickformat="~s", ticksuffix=suffix, rangemode="tozero")
