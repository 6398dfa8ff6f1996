"""Plotly figures about devices: the main metric, samples, rounds and costs.

Values are aggregated in Python, not in the browser, so that a page about 10 000 devices is as small as one about ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undergrowth.core.task_kind import FRACTIONS
from undergrowth.report.figures import Figure, axis, build_figure, colour, cost_of, legend_group, shorten
from undergrowth.report.groups import Group
from undergrowth.report.run_record import finite
from undergrowth.report.tables import count

_BINS = 20
_MAX_BINS_WITH_TICKS = 14  # one tick per whole number
MAX_POINTS = 1500  # in a scatter plot
_MAX_LABEL = 24  # letters of the name of a group beside its box, for narrow screens
_PIXELS_PER_BOX = 34
_MAX_DEVICE_CLASSES = 12
_MAX_WHOLE_TICKS = 8

_AXIS_TITLES = {"samples": "training samples", "rounds": "rounds taken part"}
_TITLES = {"samples": "Samples of devices", "rounds": "Rounds taken part"}
_COSTS = {
    "bytes": ("Bytes per device, down and up", "B"),
    "flops": ("FLOPs per device", ""),
    "joules": ("Joules per device", "J"),
    "compute_seconds": ("Computing time per device", "s"),
    "memory": ("Peak memory per device", "B"),
}
COSTS = tuple(_COSTS)
Array = NDArray[Any]


def distribution(groups: Sequence[Group], key: str) -> Figure | None:
    """The devices by a metric, samples or rounds: a histogram of one group, or a box for each of several groups."""
    found = [[finite(device.get(key)) for device in group.devices] for group in groups]
    values = [np.array([value for value in each if value is not None]) for each in found]
    if not any(len(each) for each in values):
        return None
    return _histogram(values[0], key) if len(groups) == 1 else _boxes(groups, values, key)


def _histogram(values: Array, key: str) -> Figure:
    edges = _bin_edges(values, key)
    numbers, _ = np.histogram(values, edges)
    bars = {
        "type": "bar", "x": ((edges[:-1] + edges[1:]) / 2).tolist(), "y": numbers.tolist(),
        "marker": {"color": colour(0)}, "customdata": [_bin_label(low, high, key) for low, high in pairwise(edges)],
        "hovertemplate": f"{_axis_title(key)} %{{customdata}}<br>%{{y}} devices<extra></extra>",
    }  # fmt: skip
    x_axis = _value_axis(key)
    if key in _TITLES and len(edges) <= _MAX_BINS_WITH_TICKS + 1:
        x_axis["dtick"] = 1
    y_axis = axis("devices", dtick=1) if max(numbers) <= _MAX_WHOLE_TICKS else axis("devices")
    return build_figure([bars], _title(key), x_axis, y_axis, bargap=0.08)


def _boxes(groups: Sequence[Group], values: Sequence[Array], key: str) -> Figure:
    figure = box_figure([group.label for group in groups], values, _title(key), _value_axis(key))
    for box in figure["data"]:
        box["legendgroup"] = legend_group(box["y"][0])
    return figure


def box_figure(
    labels: Sequence[str], values: Sequence[Sequence[float] | Array], title: str, x_axis: dict[str, Any]
) -> Figure:
    """Boxes below each other, one for each label that has values."""
    boxes = [
        {
            "type": "box", "orientation": "h", "name": label, "y": [place], **quantiles([own]),
            "marker": {"color": colour(place)}, "line": {"width": 1.5},
        }
        for place, (label, own) in enumerate(zip(labels, values, strict=True))
        if len(own)
    ]  # fmt: skip
    ticks = {"tickvals": list(range(len(labels))), "ticktext": [shorten(label, _MAX_LABEL) for label in labels]}
    y_axis = axis("", **ticks, range=[len(labels) - 0.5, -0.5], showgrid=False)
    return build_figure(boxes, title, x_axis, y_axis, height=90 + _PIXELS_PER_BOX * len(labels))


def _value_axis(key: str) -> dict[str, Any]:
    more: dict[str, Any] = {"tickformat": ".0%", "range": [0, 1]} if key in FRACTIONS else {"tickformat": "~s"}
    return axis(_axis_title(key), **more)


def _axis_title(key: str) -> str:
    return _AXIS_TITLES.get(key, f"{key} on own test samples")


def _title(key: str) -> str:
    return _TITLES.get(key, f"{key.capitalize()} of devices")


def quantiles(values: Sequence[Sequence[float] | Array]) -> dict[str, list[float]]:
    """Minimum, quartiles and maximum of each sequence, under the names that a box trace has for them."""
    low, first, middle, third, high = np.array([np.quantile(each, (0, 0.25, 0.5, 0.75, 1)) for each in values]).T
    return {
        "lowerfence": low.tolist(), "q1": first.tolist(), "median": middle.tolist(), "q3": third.tolist(),
        "upperfence": high.tolist(),
    }  # fmt: skip


def metric_against_samples(groups: Sequence[Group], metric: str) -> Figure | None:
    """The metric of each device against its number of samples."""
    traces = []
    known, drawn = 0, 0
    for place, group in enumerate(groups):
        devices = [device for device in group.devices if finite(device.get(metric)) is not None]
        about = f"%{{x}} samples<br>{metric} %{{y:.3f}}"
        shown = devices[:: -(-len(devices) * len(groups) // MAX_POINTS) or 1]
        known, drawn = known + len(devices), drawn + len(shown)
        traces.append({
            "type": "scatter", "mode": "markers", "name": group.label, "legendgroup": legend_group(place),
            "x": [device["samples"] for device in shown],
            "y": [round(device[metric], 4) for device in shown],
            "customdata": [[device["device"], device["tier"]] for device in shown],
            "marker": {"color": colour(place), "size": 7, "opacity": 0.7},
            "hovertemplate": f"%{{customdata[0]}} (%{{customdata[1]}})<br>{about}<extra></extra>",
        })  # fmt: skip
    if not drawn:
        return None
    title = f"{metric.capitalize()} against samples" + (
        f" ({count(drawn)} of {count(known)} shown)" if drawn < known else ""
    )
    percent = {"tickformat": ".0%"} if metric in FRACTIONS else {}
    return build_figure(traces, title, axis("training samples"), axis(f"{metric} of the device", **percent))


def cost_boxes(groups: Sequence[Group], cost: str) -> Figure | None:
    """Minimum, quartiles and maximum of `cost` over the devices of each class."""
    title, suffix = _COSTS[cost]
    boxes = []
    for place, group in enumerate(groups):
        by_class = _costs_by_class(group, cost)
        if not by_class:
            continue
        boxes.append({
            "type": "box", "name": group.label, "legendgroup": legend_group(place), "x": list(by_class),
            **quantiles(list(by_class.values())), "marker": {"color": colour(place)}, "line": {"width": 1.5},
        })  # fmt: skip
    if not boxes:
        return None
    y_axis = axis("", tickformat="~s", ticksuffix=suffix, rangemode="tozero")
    return build_figure(boxes, title, axis("", type="category"), y_axis, boxmode="group")


def _bin_edges(values: Array, key: str) -> Array:
    if key in FRACTIONS:
        return np.linspace(0, 1, _BINS + 1)
    low, high = float(values.min()), float(values.max())
    if key not in _TITLES:  # a metric, not a number of something
        return np.linspace(low, high if high > low else low + 1, _BINS + 1)
    if high - low < _BINS:  # one bin per whole number
        return np.arange(np.floor(low), np.floor(high) + 2) - 0.5
    width = float(np.ceil((high + 1 - low) / _BINS))
    return low - 0.5 + width * np.arange(_BINS + 1)


def _bin_label(low: float, high: float, key: str) -> str:
    if key in FRACTIONS:
        return f"{low:.0%} to {high:.0%}"
    if key not in _TITLES:
        return f"{low:.3g} to {high:.3g}"
    first, last = round(low + 0.5), round(high - 0.5)
    return f"{first}" if first == last else f"{first} to {last}"


def _costs_by_class(group: Group, cost: str) -> dict[str, list[float]]:
    """Device class → costs of its devices, largest classes first."""
    costs: dict[str, list[float]] = {}
    for device in group.devices:
        value = cost_of(device, cost)
        if value is not None:
            costs.setdefault(str(device["tier"]), []).append(value)
    return dict(sorted(costs.items(), key=lambda item: -len(item[1]))[:_MAX_DEVICE_CLASSES])
