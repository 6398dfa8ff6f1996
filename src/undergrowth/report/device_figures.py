"""Plotly figures about devices: accuracy, samples, rounds and costs.

Values are aggregated in Python, not in the browser, so that a page about 10 000 devices is as small as one about ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undergrowth.report.figures import Figure, axis, build_figure, colour, cost_of, legend_group
from undergrowth.report.run_record import RunRecord, finite
from undergrowth.report.tables import count

_BINS = 20
_MAX_BINS_WITH_TICKS = 14  # one tick per whole number
_MAX_POINTS = 1500  # per run in a scatter plot
_MAX_DEVICE_CLASSES = 12
_MAX_WHOLE_TICKS = 8

_AXIS_TITLES = {
    "accuracy": "accuracy on the device's test samples", "samples": "training samples", "rounds": "rounds taken part",
}  # fmt: skip
_TITLES = {"accuracy": "Accuracy of devices", "samples": "Samples of devices", "rounds": "Rounds taken part"}
_COSTS = {
    "bytes": ("Bytes per device, down and up", "B"),
    "flops": ("FLOPs per device", ""),
    "joules": ("Joules per device", "J"),
    "compute_seconds": ("Computing time per device", "s"),
    "memory": ("Peak memory per device", "B"),
}
COSTS = tuple(_COSTS)
Array = NDArray[Any]


def histogram(records: Sequence[RunRecord], labels: Sequence[str], key: str) -> Figure | None:
    """The number of devices by accuracy, samples or rounds."""
    found = [[finite(device.get(key)) for device in record.devices] for record in records]
    values = [np.array([value for value in each if value is not None]) for each in found]
    together = np.concatenate(values) if values else np.empty(0)
    if not len(together):
        return None
    edges = _bin_edges(together, key)
    bars = []
    for place, (label, run_values) in enumerate(zip(labels, values, strict=True)):
        numbers, _ = np.histogram(run_values, edges)
        bars.append({
            "type": "bar", "x": ((edges[:-1] + edges[1:]) / 2).tolist(), "y": numbers.tolist(), "name": label,
            "legendgroup": legend_group(place), "marker": {"color": colour(place)},
            "customdata": [_bin_label(low, high, key) for low, high in pairwise(edges)],
            "hovertemplate": f"{_AXIS_TITLES[key]} %{{customdata}}<br>%{{y}} devices<extra></extra>",
        })  # fmt: skip
    x_axis = axis(_AXIS_TITLES[key], tickformat="~s")
    if key == "accuracy":
        x_axis |= {"tickformat": ".0%", "range": [0, 1]}
    elif len(edges) <= _MAX_BINS_WITH_TICKS + 1:
        x_axis["dtick"] = 1
    highest = max(max(bar["y"]) for bar in bars)
    y_axis = axis("devices", dtick=1) if highest <= _MAX_WHOLE_TICKS else axis("devices")
    return build_figure(bars, _TITLES[key], x_axis, y_axis, barmode="group", bargap=0.08)


def accuracy_against_samples(records: Sequence[RunRecord], labels: Sequence[str]) -> Figure | None:
    """The accuracy of each device against its number of samples."""
    traces = []
    known, drawn = 0, 0
    for place, (record, label) in enumerate(zip(records, labels, strict=True)):
        devices = [device for device in record.devices if finite(device["accuracy"]) is not None]
        shown = devices[:: -(-len(devices) // _MAX_POINTS) or 1]
        known, drawn = known + len(devices), drawn + len(shown)
        traces.append({
            "type": "scatter", "mode": "markers", "name": label, "legendgroup": legend_group(place),
            "x": [device["samples"] for device in shown],
            "y": [device["accuracy"] for device in shown],
            "customdata": [[device["device"], device["tier"]] for device in shown],
            "marker": {"color": colour(place), "size": 7, "opacity": 0.7},
            "hovertemplate": "%{customdata[0]} (%{customdata[1]})<br>%{x} samples<br>accuracy %{y:.3f}<extra></extra>",
        })  # fmt: skip
    if not drawn:
        return None
    title = "Accuracy against samples" + (f" ({count(drawn)} of {count(known)} shown)" if drawn < known else "")
    return build_figure(traces, title, axis("training samples"), axis("accuracy of the device", tickformat=".0%"))


def cost_boxes(records: Sequence[RunRecord], labels: Sequence[str], cost: str) -> Figure | None:
    """Minimum, quartiles and maximum of `cost` over the devices of each class."""
    title, suffix = _COSTS[cost]
    boxes = []
    for place, (record, label) in enumerate(zip(records, labels, strict=True)):
        groups = _costs_by_class(record, cost)
        if not groups:
            continue
        quantiles = [np.quantile(values, (0, 0.25, 0.5, 0.75, 1)) for values in groups.values()]
        low, first, middle, third, high = np.array(quantiles).T.tolist()
        boxes.append({
            "type": "box", "name": label, "legendgroup": legend_group(place), "x": list(groups), "lowerfence": low,
            "q1": first, "median": middle, "q3": third, "upperfence": high,
            "marker": {"color": colour(place)}, "line": {"width": 1.5},
        })  # fmt: skip
    if not boxes:
        return None
    y_axis = axis("", tickformat="~s", ticksuffix=suffix, rangemode="tozero")
    return build_figure(boxes, title, axis("", type="category"), y_axis, boxmode="group")


def _bin_edges(values: Array, key: str) -> Array:
    if key == "accuracy":
        return np.linspace(0, 1, _BINS + 1)
    low, high = float(values.min()), float(values.max())
    if high - low < _BINS:  # one bin per whole number
        return np.arange(np.floor(low), np.floor(high) + 2) - 0.5
    width = float(np.ceil((high + 1 - low) / _BINS))
    return low - 0.5 + width * np.arange(_BINS + 1)


def _bin_label(low: float, high: float, key: str) -> str:
    if key == "accuracy":
        return f"{low:.0%} to {high:.0%}"
    first, last = round(low + 0.5), round(high - 0.5)
    return f"{first}" if first == last else f"{first} to {last}"


def _costs_by_class(record: RunRecord, cost: str) -> dict[str, list[float]]:
    """Device class → costs of its devices, largest classes first."""
    groups: dict[str, list[float]] = {}
    for device in record.devices:
        value = cost_of(device, cost)
        if value is not None:
            groups.setdefault(str(device["tier"]), []).append(value)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1]))[:_MAX_DEVICE_CLASSES])
