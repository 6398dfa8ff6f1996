"""The Plotly figures of a report about devices: how good, how large, how often, at what cost.

They are counted together here, not in the browser: a page about ten thousand devices is no larger than one about ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from undergrowth.report.figures import COLOURS, Figure, axis, figure, run_group
from undergrowth.report.record import Record, finite
from undergrowth.report.tables import count

_BINS = 20
_MOST_POINTS = 1500  # of one run in a cloud of devices
_MOST_CLASSES = 12

_WORDS = {"accuracy": "accuracy on its own test part", "samples": "training samples", "rounds": "rounds taken part"}
_COSTS = {
    "bytes": ("Bytes per device, down and up", "B"),
    "flops": ("FLOPs per device", ""),
    "joules": ("Joules per device", "J"),
    "compute_seconds": ("Seconds of computing per device", "s"),
    "memory": ("Most memory that a device needed", "B"),
}
COSTS = tuple(_COSTS)


def distribution(records: Sequence[Record], labels: Sequence[str], key: str) -> Figure | None:
    """How many devices have which accuracy, samples or rounds."""
    values = [_values(record, key) for record in records]
    together = np.concatenate(values) if values else np.empty(0)
    if not len(together):
        return None
    edges = _edges(together, key)
    bars = []
    for place, (label, own) in enumerate(zip(labels, values)):
        numbers, _ = np.histogram(own, edges)
        spans = [_span(low, high, key) for low, high in pairwise(edges)]
        about = f"{_WORDS[key]} %{{customdata}}<br>%{{y}} devices<extra></extra>"
        bars.append({
            "type": "bar", "x": ((edges[:-1] + edges[1:]) / 2).tolist(), "y": numbers.tolist(), "name": label,
            "legendgroup": run_group(place), "marker": {"color": COLOURS[place % len(COLOURS)]}, "customdata": spans,
            "hovertemplate": about,
        })  # fmt: skip
    x_axis = axis(_WORDS[key], tickformat="~s")
    if key == "accuracy":
        x_axis |= {"tickformat": ".0%", "range": [0, 1]}
    elif len(edges) <= 15:
        x_axis["dtick"] = 1  # no half rounds
    title = {"accuracy": "Accuracy of devices", "samples": "Samples of devices", "rounds": "Rounds taken part"}[key]
    return figure(bars, title, x_axis, _whole_numbers(bars), barmode="group", bargap=0.08)


def cloud(records: Sequence[Record], labels: Sequence[str]) -> Figure | None:
    """Accuracy of every device against its number of samples."""
    clouds = []
    known, drawn = 0, 0
    for place, (record, label) in enumerate(zip(records, labels)):
        devices = [device for device in record.devices if finite(device["accuracy"]) is not None]
        shown = devices[:: -(-len(devices) // _MOST_POINTS) or 1]
        known, drawn = known + len(devices), drawn + len(shown)
        clouds.append({
            "type": "scatter", "mode": "markers", "name": label, "legendgroup": run_group(place),
            "x": [device["samples"] for device in shown],
            "y": [device["accuracy"] for device in shown],
            "customdata": [[device["device"], device["tier"]] for device in shown],
            "marker": {"color": COLOURS[place % len(COLOURS)], "size": 7, "opacity": 0.7},
            "hovertemplate": "%{customdata[0]} (%{customdata[1]})<br>%{x} samples<br>accuracy %{y:.3f}<extra></extra>",
        })  # fmt: skip
    if not drawn:
        return None
    title = "Accuracy against samples" + (f" ({count(drawn)} of {count(known)} shown)" if drawn < known else "")
    return figure(clouds, title, axis("training samples"), axis("accuracy of the device", tickformat=".0%"))


def costs(records: Sequence[Record], labels: Sequence[str], cost: str) -> Figure | None:
    """What taking part cost the devices of every class: smallest, quarters, largest."""
    title, suffix = _COSTS[cost]
    boxes = []
    for place, (record, label) in enumerate(zip(records, labels)):
        groups = _by_class(record, cost)
        if not groups:
            continue
        low, first, middle, third, high = (
            [float(value) for value in column]
            for column in zip(*(np.quantile(values, (0, 0.25, 0.5, 0.75, 1)) for values in groups.values()))
        )
        boxes.append({
            "type": "box", "name": label, "legendgroup": run_group(place), "x": list(groups), "lowerfence": low,
            "q1": first, "median": middle, "q3": third, "upperfence": high,
            "marker": {"color": COLOURS[place % len(COLOURS)]}, "line": {"width": 1.5},
        })  # fmt: skip
    if not boxes:
        return None
    y_axis = axis("", tickformat="~s", ticksuffix=suffix, rangemode="tozero")
    return figure(boxes, title, axis("", type="category"), y_axis, boxmode="group")


def _values(record: Record, key: str) -> np.ndarray:
    values = (finite(device.get(key)) for device in record.devices)
    return np.array([value for value in values if value is not None])


def _edges(values: np.ndarray, key: str) -> np.ndarray:
    if key == "accuracy":
        return np.linspace(0, 1, _BINS + 1)
    low, high = float(values.min()), float(values.max())
    if high - low < _BINS:  # few whole numbers: one bar for each
        return np.arange(np.floor(low), np.floor(high) + 2) - 0.5
    width = np.ceil((high + 1 - low) / _BINS)
    return low - 0.5 + width * np.arange(_BINS + 1)


def _span(low: float, high: float, key: str) -> str:
    if key == "accuracy":
        return f"{low:.0%} to {high:.0%}"
    first, last = round(low + 0.5), round(high - 0.5)
    return f"{first}" if first == last else f"{first} to {last}"


def _whole_numbers(bars: list[dict[str, Any]]) -> dict[str, Any]:
    return axis("devices", dtick=1) if max(max(bar["y"]) for bar in bars) <= 8 else axis("devices")


def _by_class(record: Record, cost: str) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = {}
    for device in record.devices:
        value = _cost(device, cost)
        if value is not None:
            groups.setdefault(str(device["tier"]), []).append(value)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1]))[:_MOST_CLASSES])


def _cost(device: dict[str, Any], cost: str) -> float | None:
    """None for a device that was never asked: it paid nothing because it did nothing."""
    if cost == "bytes":
        down, up = finite(device.get("bytes_down")), finite(device.get("bytes_up"))
        return None if down is None or up is None else down + up
    return finite(device.get(cost))
