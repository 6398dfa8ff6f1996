"""The bubble plot of a partition: the number of samples per device and class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from undergrowth.core import InputError

_MAX_DEVICES_IN_PLOT = 200
_MAX_DEVICE_TICKS = 25
_PAGE_WIDTH = 1000  # pixels; limits the size of bubbles so that they do not overlap


def draw_bubbles(counts: Any, names: Sequence[str], class_names: Sequence[str] = ()) -> Any:
    """A plotly figure with devices on x and classes on y; the area of a bubble is the number of samples.

    Of more than 200 devices, 200 at equal distances are shown, and the title says so.
    """
    table = np.asarray(counts)
    if table.ndim != 2 or len(table) != len(names) or 0 in table.shape:
        raise InputError(f"counts has shape {table.shape} for {len(names)} devices; it must be devices × classes")
    devices, classes = table.shape
    if class_names and len(class_names) != classes:
        raise InputError(f"class_names has {len(class_names)} names for {classes} classes")
    rows = np.unique(np.linspace(0, devices - 1, min(devices, _MAX_DEVICES_IN_PLOT)).astype(int))
    labels = [str(name) for name in class_names] or [str(number) for number in range(classes)]
    return _figure(table[rows], [str(names[row]) for row in rows], labels, _title(table, len(rows)))


def _title(table: np.ndarray, shown: int) -> str:
    devices = len(table)
    title = f"{table.sum():,} training samples on {devices:,} devices".replace(",", " ")
    empty = int((table.sum(axis=1) == 0).sum())
    if empty:
        title += f", {empty} without samples"
    return title if shown == devices else f"{title} ({shown} shown)"


def _figure(table: np.ndarray, names: list[str], labels: list[str], title: str) -> Any:
    from plotly import graph_objects  # slow to import

    devices, classes = table.shape
    height = int(np.clip(120 + 30 * classes, 320, 1000))
    # Slightly less than the distance of two devices or classes. In narrow columns bubbles may overlap a little.
    diameter = float(np.clip(min(_PAGE_WIDTH / devices, (height - 120) / classes), 9, 36))
    row, column = np.nonzero(table)
    amount = table[row, column]
    area = {"size": amount, "sizemode": "area", "sizeref": 2 * float(table.max() or 1) / diameter**2, "sizemin": 1}
    bubble = graph_objects.Scatter(
        x=row,
        y=column,
        mode="markers",
        marker={**area, "color": "#2a7f62", "opacity": 0.75, "line": {"width": 0}},
        customdata=[[names[d], labels[c]] for d, c in zip(row, column, strict=True)],
        hovertemplate="%{customdata[0]}<br>class %{customdata[1]}<br>%{marker.size} samples<extra></extra>",
    )
    numbers = [name.removeprefix("device-") for name in names]
    layout = {
        "title": {"text": title},
        "template": "plotly_white",
        "height": height,
        "showlegend": False,
        "xaxis": _axis("device", [-0.6, devices - 0.4], numbers, _MAX_DEVICE_TICKS, showgrid=False),
        "yaxis": _axis("class", [-0.7, classes - 0.3], labels, (height - 120) // 14),
    }
    return graph_objects.Figure(bubble, layout=layout)


def _axis(title: str, limits: list[float], labels: list[str], max_ticks: int, **more: Any) -> dict[str, Any]:
    """An axis with at most `max_ticks` of the labels, at equal distances."""
    shown = list(range(0, len(labels), -(-len(labels) // max_ticks)))
    ticks = {"tickvals": shown, "ticktext": [labels[number] for number in shown]}
    return {"title": {"text": title}, "range": limits, **ticks, **more, "zeroline": False}
