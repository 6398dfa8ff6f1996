"""A two-dimensional map of the samples of one device (Shi, Sheffield thesis, §6.3.1): t-SNE of features at one level.

Samples with similar features are close together. The samples that two selectors choose are marked: those with the
highest entropy (FedFT-EDS), and those nearest to the centres of K-means clusters (FedSplit).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from undergrowth.core import InputError
from undergrowth.learning import EntropySelector, features_of
from undergrowth.learning.clustering import principal, representatives
from undergrowth.learning.selectors import count_selected
from undergrowth.report.analyses.analysis import Analysis, Numbers, RunNumbers, add_run_heading, round_numbers
from undergrowth.report.analyses.reopened_run import ReopenedRun
from undergrowth.report.figures import COLOURS, Figure, add_legend, axis, build_figure
from undergrowth.report.html import Page
from undergrowth.report.run_record import RunRecord
from undergrowth.report.tables import count

_MAX_SAMPLES = 500
_MIN_SAMPLES = 10
_COMPONENTS = 50  # principal components of the features, used for distances
_PERPLEXITY = 30.0
_FRACTION = 0.1  # of the samples that a selector chooses
_MAX_CLASSES_IN_LEGEND = 20
_DEFAULT_LEVEL = "up"  # for methods that do not split the model
_MARKS = {"entropy": ("circle-open", "highest entropy"), "clusters": ("diamond-open", "nearest to a cluster centre")}


def compute(record: RunRecord, reopen: Callable[[], ReopenedRun]) -> Numbers:
    run = reopen()
    level, device = _level(run), next(iter(run.devices), "")
    samples = run.population.size(device) if device else 0
    if samples < _MIN_SAMPLES:
        raise InputError(f"t-SNE needs {_MIN_SAMPLES} samples, and no device of '{record.run}' has more than {samples}")
    context, shard = run.context(device), run.shard(device)
    indices = torch.randperm(samples, generator=context.generator("tsne samples"))[:_MAX_SAMPLES].sort().values
    shown = shard.take(indices.to(shard.y.device))
    features = features_of(run.task, run.weights, shown.x, level).flatten(1).cpu()
    generator = context.generator("tsne selection")
    uncertain = EntropySelector(_FRACTION).pick(run.task, run.weights, shown, generator)
    kept = partial(count_selected, _FRACTION)
    central = representatives(features, shown.y, kept, _COMPONENTS, generator)
    progress_task = run.progress.add_task("tsne: map", total=None)
    points = principal(features.double(), _COMPONENTS)
    embedded = _embed(points, context.key("tsne") % 2**32)
    run.progress.remove_task(progress_task)
    names, (labels, label_indices) = run.class_names(), shown.y.unique(return_inverse=True)
    return {
        "device": device, "level": level, "samples": len(shown), "of": samples,
        "labels": label_indices.tolist(), "classes": [names[label] for label in labels.tolist()],
        "points": round_numbers(embedded, 3),
        "selected": {"entropy": uncertain.tolist(), "clusters": central.tolist()},
        "same_class_neighbours": _same_class_neighbours(points, shown.y.cpu()),
    }  # fmt: skip


def render(page: Page, runs: Sequence[RunNumbers]) -> None:
    for run in runs:
        add_run_heading(page, runs, run)
        numbers = run.numbers
        page.text(
            f"At {numbers['level']}, {numbers['same_class_neighbours']:.0%} of the samples of {numbers['device']} "
            f"have a nearest neighbour of their class. {_coverage(numbers, 'entropy')} {_coverage(numbers, 'clusters')}"
        )
        page.figures([_map_figure(numbers)])
    rows = [
        (
            run.label, run.numbers["device"], run.numbers["level"],
            f"{count(run.numbers['samples'])} of {count(run.numbers['of'])}",
            f"{run.numbers['same_class_neighbours']:.1%}",
            *(count(len(run.numbers["selected"][kind])) for kind in _MARKS),
        )
        for run in runs
    ]  # fmt: skip
    marks = [words for _, words in _MARKS.values()]
    page.table(("run", "device", "level", "samples shown", "same-class neighbours", *marks), rows)


def _coverage(numbers: Numbers, kind: str) -> str:
    """A sentence about the number of classes that a selector covers."""
    covered = {numbers["labels"][place] for place in numbers["selected"][kind]}
    samples = {"entropy": "with the highest entropy", "clusters": "nearest to cluster centres"}[kind]
    return f"The samples {samples} cover {len(covered)} of its {len(numbers['classes'])} classes."


def _map_figure(numbers: Numbers) -> Figure:
    labels, names = numbers["labels"], numbers["classes"]
    traces = []
    for label, name in enumerate(names):
        members = [at for at, each in enumerate(labels) if each == label]
        marker = {"color": COLOURS[label % len(COLOURS)], "size": 6, "symbol": label // len(COLOURS)}
        named = {"name": name, "showlegend": len(names) <= _MAX_CLASSES_IN_LEGEND}
        traces.append(_points(numbers, members) | named | {"marker": marker})
    for kind, (symbol, words) in _MARKS.items():
        marker = {"symbol": symbol, "size": 13, "color": "#8a8a8a", "line": {"width": 2}}
        traces.append(_points(numbers, numbers["selected"][kind]) | {"name": words, "marker": marker})
    plain = {"showticklabels": False, "showgrid": False}
    title = f"{count(numbers['samples'])} samples of {numbers['device']} at {numbers['level']}, by class"
    return add_legend(build_figure(traces, title, axis("", **plain), axis("", **plain), height=560))


def _points(numbers: Numbers, members: Sequence[int]) -> dict[str, Any]:
    points, labels, names = numbers["points"], numbers["labels"], numbers["classes"]
    return {
        "type": "scatter", "mode": "markers", "x": [points[at][0] for at in members],
        "y": [points[at][1] for at in members], "text": [names[labels[at]] for at in members],
        "hovertemplate": "class %{text}<extra></extra>",
    }  # fmt: skip


def _level(run: ReopenedRun) -> str:
    """The level at which the method splits the model; otherwise the default level, or the highest one."""
    levels, method = run.levels, run.federation.method
    candidates = (getattr(method, "split", None), getattr(method, "level", None), _DEFAULT_LEVEL)
    return next((level for level in candidates if level in levels), levels[-1])


def _embed(points: Tensor, seed: int) -> list[list[float]]:
    from sklearn.manifold import TSNE  # imported here because it takes a second

    # The faster Barnes-Hut method sums in an order that depends on threads.
    perplexity = min(_PERPLEXITY, (len(points) - 1) / 3)
    fitted = TSNE(2, perplexity=perplexity, method="exact", random_state=seed).fit_transform(points.numpy())
    positions: list[list[float]] = fitted.astype(float).tolist()
    return positions


def _same_class_neighbours(points: Tensor, labels: Tensor) -> float:
    """The fraction of points whose nearest neighbour has the same label."""
    distances = torch.cdist(points, points).fill_diagonal_(torch.inf)
    return float((labels[distances.argmin(1)] == labels).double().mean())


TSNE_MAP = Analysis(
    "Map of samples",
    "t-SNE of the features of one device's samples; samples with similar features are close together.",
    compute,
    render,
    needs_classes=True,
)
