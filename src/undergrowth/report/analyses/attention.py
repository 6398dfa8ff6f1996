"""Attention maps of test samples (Shi, Sheffield thesis, §5.2.1): where the features of each level are large."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.core import InputError
from undergrowth.learning.features import attention_map
from undergrowth.report.analyses.analysis import COLOUR_SCALE, Analysis, Numbers, RunNumbers, add_run_heading
from undergrowth.report.analyses.reopened_run import ReopenedRun
from undergrowth.report.figures import Figure, axis, build_figure
from undergrowth.report.html import Page
from undergrowth.report.run_record import RunRecord

_SAMPLES = 8
_MAX_PIXELS = 32  # per side; larger maps are scaled down for the page
_FILLED = 0.94  # fraction of a grid cell that an image fills; the rest is the gap to the next image
_BATCH = 256


def compute(record: RunRecord, reopen: Callable[[], ReopenedRun]) -> Numbers:
    run = reopen()
    test, model, weights = run.test_samples(), run.task.model, run.weights
    if test.x.dim() != 4:
        shape = tuple(test.x.shape[1:])
        raise InputError(f"attention maps need images, and a sample of run '{record.run}' has the shape {shape}")
    shown = test.take(_first_of_each_class(test.y))
    with torch.no_grad():
        output = model.run(weights, shown.x, maps=run.levels)
        levels = [level for level, features in output.maps.items() if features.dim() == 4]
        if not levels:
            raise InputError(f"attention maps need a level with height and width; the model of '{record.run}' has none")
        spread = dict.fromkeys(levels, 0.0)
        for x in run.progress.track(test.x.split(_BATCH), description="attention: features"):
            for level, features in model.run(weights, x, maps=levels).maps.items():
                spread[level] += float(_relative_entropy(attention_map(features)).sum())
    names = run.class_names()
    return {
        "classes": [names[label] for label in shown.y.tolist()],
        "predicted": [names[guess] for guess in output.logits[:, : len(names)].argmax(1).tolist()],
        "inputs": _to_bytes(_rgb(shown.x)).permute(0, 2, 3, 1).tolist(),
        "maps": {level: _to_bytes(attention_map(output.maps[level])[:, None])[:, 0].tolist() for level in levels},
        "sizes": {level: list(output.maps[level].shape[2:]) for level in levels},
        "spread": {level: total / len(test) for level, total in spread.items()},
        "test_samples": len(test),
    }


def render(page: Page, runs: Sequence[RunNumbers]) -> None:
    for run in runs:
        add_run_heading(page, runs, run)
        parts = ", ".join(f"{value:.2f} at {level}" for level, value in run.numbers["spread"].items())
        page.text(f"The relative entropy of attention is {parts}; 1: equal everywhere, 0: all in one pixel.")
        page.figures([_attention_figure(run.numbers)])
    rows = [
        (run.label, level, " × ".join(map(str, run.numbers["sizes"][level])), f"{value:.3f}")
        for run in runs
        for level, value in run.numbers["spread"].items()
    ]
    page.table(("run", "level", "pixels", "relative entropy"), rows)


def _attention_figure(numbers: Numbers) -> Figure:
    """One column per sample: the input on top, below it one attention map per level, lowest level first."""
    rows = ["input", *numbers["maps"]]
    traces: list[dict[str, Any]] = []
    for column, label in enumerate(numbers["classes"]):
        hover = {"hovertemplate": f"a sample of class {label}<extra></extra>"}
        traces.append({"type": "image", "z": numbers["inputs"][column], **hover})
        for level, maps in numbers["maps"].items():
            hover = {"hovertemplate": f"class {label}, {level}<extra></extra>"}
            colours = {"colorscale": COLOUR_SCALE, "showscale": False, "zmin": 0, "zmax": 255}
            traces.append({"type": "heatmap", "z": maps[column], **colours, **hover})
    for place, trace in enumerate(traces):
        column, row = divmod(place, len(rows))
        height, width = len(trace["z"]), len(trace["z"][0])
        trace |= {"dx": _FILLED / width, "dy": _FILLED / height}
        trace |= {"x0": column + trace["dx"] / 2, "y0": row + trace["dy"] / 2}
    columns = list(zip(numbers["classes"], numbers["predicted"], strict=True))
    captions = [label if label == guess else f"{label}, predicted {guess}" for label, guess in columns]
    plain = {"showgrid": False, "tickmode": "array", "constrain": "domain"}
    x_axis = axis("", tickvals=_centres(columns), ticktext=captions, range=[0, len(columns)], **plain)
    y_axis = axis("", tickvals=_centres(rows), ticktext=rows, range=[len(rows), 0], scaleanchor="x", **plain)
    title = "Attention: Σ over channels of |f|²"
    return build_figure(traces, title, x_axis, y_axis, height=100 + 125 * len(rows))


def _centres(items: Sequence[Any]) -> list[float]:
    return [place + _FILLED / 2 for place in range(len(items))]


def _first_of_each_class(labels: Tensor) -> Tensor:
    """Indices of the first sample of each class, lowest classes first."""
    firsts = [int((labels == label).nonzero()[0]) for label in labels.unique()[:_SAMPLES]]
    return torch.tensor(firsts, device=labels.device)


def _relative_entropy(maps: Tensor) -> Tensor:
    """Entropy of a map divided by log(number of pixels)."""
    flat = maps.double().flatten(1)
    fractions = flat / flat.sum(1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)
    entropy: Tensor = torch.special.entr(fractions).sum(1)
    return entropy / math.log(max(2, flat.shape[1]))


def _rgb(images: Tensor) -> Tensor:
    """Images with three channels: those of a colour image, or three copies of the mean over channels."""
    return images if images.shape[1] == 3 else images.mean(1, keepdim=True).expand(-1, 3, -1, -1)


def _to_bytes(images: Tensor) -> Tensor:
    """Images as integers from 0 to 255, each scaled to its own range, and scaled down to keep the page small."""
    height, width = images.shape[2:]
    small = F.adaptive_avg_pool2d(images.double(), (min(height, _MAX_PIXELS), min(width, _MAX_PIXELS)))
    low, high = small.amin((1, 2, 3), keepdim=True), small.amax((1, 2, 3), keepdim=True)
    return ((small - low) / (high - low).clamp_min(1e-12) * 255).round().to(torch.int64)


ATTENTION = Analysis(
    "Attention maps",
    "Where in a test sample the features of the final model are large, by level; darker is larger.",
    compute,
    render,
    needs_classes=True,
)
