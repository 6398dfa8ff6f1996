"""Attention maps of test samples (Shi, Sheffield thesis, §5.2.1): where the features of each level are strong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.core import InputError
from undergrowth.methods.fedat import attention_map
from undergrowth.report.analyses.analysis import SHADES, Analysis, Numbers, Seen, several
from undergrowth.report.analyses.finished import Finished
from undergrowth.report.figures import Figure, axis, figure
from undergrowth.report.html import Page
from undergrowth.report.record import Record

_SAMPLES = 8
_MOST_PIXELS = 32  # on a side; larger maps are shrunk for the page
_FILLED = 0.94  # of a place in the picture; the rest is the gap to the next
_BATCH = 256


def look(record: Record, run: Callable[[], Finished]) -> Numbers:
    finished = run()
    test, model, weights = finished.test(), finished.task.model, finished.weights
    if test.x.dim() != 4:
        shape = tuple(test.x.shape[1:])
        raise InputError(f"attention maps need images, and a sample of run '{record.run}' has the shape {shape}")
    shown = test.take(_one_of_each_class(test.y))
    with torch.no_grad():
        output = model.run(weights, shown.x, maps=finished.levels)
        levels = [level for level, features in output.maps.items() if features.dim() == 4]
        if not levels:
            raise InputError(f"attention maps need a level with height and width; the model of '{record.run}' has none")
        spread = dict.fromkeys(levels, 0.0)
        for x in finished.bar.track(test.x.split(_BATCH), description="attention: features"):
            for level, features in model.run(weights, x, maps=levels).maps.items():
                spread[level] += float(_spread(attention_map(features)).sum())
    names = finished.class_names()
    return {
        "classes": [names[label] for label in shown.y.tolist()],
        "predicted": [names[guess] for guess in output.logits[:, : len(names)].argmax(1).tolist()],
        "inputs": _bytes(_colours(shown.x)).permute(0, 2, 3, 1).tolist(),
        "maps": {level: _bytes(attention_map(output.maps[level])[:, None])[:, 0].tolist() for level in levels},
        "sizes": {level: list(output.maps[level].shape[2:]) for level in levels},
        "spread": {level: total / len(test) for level, total in spread.items()},
        "test_samples": len(test),
    }


def show(page: Page, seen: Sequence[Seen]) -> None:
    for each in seen:
        several(page, seen, each)
        parts = ", ".join(f"{value:.2f} at {level}" for level, value in each.numbers["spread"].items())
        page.text(f"Attention is spread over a sample by {parts}, where 1 is evenly and 0 is all in one place.")
        page.figures([_drawn(each.numbers)])
    rows = [
        (each.label, level, " × ".join(map(str, each.numbers["sizes"][level])), f"{value:.3f}")
        for each in seen
        for level, value in each.numbers["spread"].items()
    ]
    page.table(("run", "level", "places", "spread of attention"), rows)


def _drawn(numbers: Numbers) -> Figure:
    """A column for every sample: the input on top, below it a map for every level, from the lowest up."""
    rows = ["input", *numbers["maps"]]
    traces: list[dict[str, Any]] = []
    for column, label in enumerate(numbers["classes"]):
        about = {"hovertemplate": f"a sample of class {label}<extra></extra>"}
        traces.append({"type": "image", "z": numbers["inputs"][column], **about})
        for level, maps in numbers["maps"].items():
            about = {"hovertemplate": f"class {label}, {level}<extra></extra>"}
            colours = {"colorscale": SHADES, "showscale": False, "zmin": 0, "zmax": 255}
            traces.append({"type": "heatmap", "z": maps[column], **colours, **about})
    for place, trace in enumerate(traces):
        column, row = divmod(place, len(rows))
        height, width = len(trace["z"]), len(trace["z"][0])
        trace |= {"dx": _FILLED / width, "dy": _FILLED / height}
        trace |= {"x0": column + trace["dx"] / 2, "y0": row + trace["dy"] / 2}
    columns = list(zip(numbers["classes"], numbers["predicted"]))
    below = [label if label == guess else f"{label}, taken for {guess}" for label, guess in columns]
    plain = {"showgrid": False, "tickmode": "array"}
    x_axis = axis("", tickvals=_middles(columns), ticktext=below, range=[0, len(columns)], constrain="domain", **plain)
    y_axis = axis("", tickvals=_middles(rows), ticktext=rows, range=[len(rows), 0], scaleanchor="x", **plain)
    drawn = figure(traces, "Attention: Σ over channels of |f|²", x_axis, y_axis | {"constrain": "domain"})
    drawn["layout"]["height"] = 100 + 125 * len(rows)
    return drawn


def _middles(places: Sequence[Any]) -> list[float]:
    return [place + _FILLED / 2 for place in range(len(places))]


def _one_of_each_class(labels: Tensor) -> Tensor:
    """Positions of the first sample of each class, the lowest classes first."""
    firsts = [int((labels == label).nonzero()[0]) for label in labels.unique()[:_SAMPLES]]
    return torch.tensor(firsts, device=labels.device)


def _spread(maps: Tensor) -> Tensor:
    """The entropy of a map, by the highest that one with so many places can have."""
    flat = maps.double().flatten(1)
    shares = flat / flat.sum(1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)
    return torch.special.entr(shares).sum(1) / math.log(max(2, flat.shape[1]))


def _colours(images: Tensor) -> Tensor:
    """Three channels: those of a colour image, or three times the mean of all."""
    return images if images.shape[1] == 3 else images.mean(1, keepdim=True).expand(-1, 3, -1, -1)


def _bytes(images: Tensor) -> Tensor:
    """Whole numbers from 0 to 255, each image in its own range, on so few pixels that the page stays small."""
    height, width = images.shape[2:]
    small = F.adaptive_avg_pool2d(images.double(), (min(height, _MOST_PIXELS), min(width, _MOST_PIXELS)))
    low, high = small.amin((1, 2, 3), keepdim=True), small.amax((1, 2, 3), keepdim=True)
    return ((small - low) / (high - low).clamp_min(1e-12) * 255).round().to(torch.int64)


ATTENTION = Analysis(
    "Attention maps",
    "Where in a test sample the features of the final model are strong, level by level; darker is stronger.",
    look,
    show,
)
