"""The samples of one device as a map (Shi, Sheffield thesis, §6.3.1): t-SNE of their features at one level.

Samples that the model holds for alike lie close together. Those that a selection would train on are marked: the highest
entropies (FedFT-EDS), and the nearest to the centres of K-means clusters (FedSplit), as many of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from undergrowth.core import InputError
from undergrowth.learning import EntropySelector, features_of
from undergrowth.learning.clustering import principal, representatives
from undergrowth.learning.selectors import count_of
from undergrowth.report.analyses.analysis import Analysis, Numbers, Seen, rounded, several
from undergrowth.report.analyses.finished import Finished
from undergrowth.report.figures import COLOURS, Figure, axis, figure, with_key
from undergrowth.report.html import Page
from undergrowth.report.record import Record
from undergrowth.report.tables import count

_MOST_SAMPLES = 500
_FEWEST_SAMPLES = 10
_COMPONENTS = 50  # principal ones of the features, in which distances are measured
_PERPLEXITY = 30.0
_SHARE = 0.1  # of the samples that a selection takes
_MOST_NAMES = 20  # classes that fit into a key
_USUAL = "up"  # the level that is shown where the method has none of its own
_MARKS = {"entropy": ("circle-open", "highest entropy"), "clusters": ("diamond-open", "centre of a cluster")}


def look(record: Record, run: Callable[[], Finished]) -> Numbers:
    finished = run()
    level, device = _level(finished), next(iter(finished.devices), "")
    samples = finished.federation.population.size(device) if device else 0
    if samples < _FEWEST_SAMPLES:
        raise InputError(
            f"a map needs {_FEWEST_SAMPLES} samples, and no device of '{record.run}' has more than {samples}"
        )
    context, shard = finished.context(device), finished.shard(device)
    drawn = torch.randperm(samples, generator=context.generator("tsne samples"))[:_MOST_SAMPLES].sort().values
    shown = shard.take(drawn.to(shard.y.device))
    features = features_of(finished.task, finished.weights, shown.x, level).flatten(1).cpu()
    generator = context.generator("tsne selection")
    certain = EntropySelector(_SHARE).pick(finished.task, finished.weights, shown, generator)
    central = representatives(features, shown.y, lambda number: count_of(_SHARE, number), _COMPONENTS, generator)
    working = finished.bar.add_task("tsne: map", total=None)
    points = principal(features.double(), _COMPONENTS)
    placed = _embedded(points, context.key("tsne") % 2**32)
    finished.bar.remove_task(working)
    names, (there, places) = finished.class_names(), shown.y.unique(return_inverse=True)
    return {
        "device": device, "level": level, "samples": len(shown), "of": samples,
        "labels": places.tolist(), "classes": [names[label] for label in there.tolist()],
        "points": rounded(placed, 3),
        "selected": {"entropy": certain.tolist(), "clusters": central.tolist()},
        "neighbours_alike": _neighbours_alike(points, shown.y.cpu()),
    }  # fmt: skip


def show(page: Page, seen: Sequence[Seen]) -> None:
    for each in seen:
        several(page, seen, each)
        numbers = each.numbers
        page.text(
            f"At {numbers['level']}, {numbers['neighbours_alike']:.0%} of the samples of {numbers['device']} lie "
            f"nearest to one of their own class. {_chosen(numbers, 'entropy')} {_chosen(numbers, 'clusters')}"
        )
        page.figures([_drawn(numbers)])
    rows = [
        (
            each.label, each.numbers["device"], each.numbers["level"],
            f"{count(each.numbers['samples'])} of {count(each.numbers['of'])}",
            f"{each.numbers['neighbours_alike']:.1%}",
            *(count(len(each.numbers["selected"][kind])) for kind in _MARKS),
        )
        for each in seen
    ]  # fmt: skip
    marks = [words for _, words in _MARKS.values()]
    page.table(("run", "device", "level", "samples shown", "nearest to their class", *marks), rows)


def _chosen(numbers: Numbers, kind: str) -> str:
    """How many of the classes a selection covers."""
    covered = {numbers["labels"][place] for place in numbers["selected"][kind]}
    name = {"entropy": "The highest entropies", "clusters": "The centres of clusters"}[kind]
    return f"{name} come from {len(covered)} of its {len(numbers['classes'])} classes."


def _drawn(numbers: Numbers) -> Figure:
    labels, names = numbers["labels"], numbers["classes"]
    traces = []
    for label, name in enumerate(names):
        members = [at for at, each in enumerate(labels) if each == label]
        marker = {"color": COLOURS[label % len(COLOURS)], "size": 6, "symbol": label // len(COLOURS)}
        named = {"name": name, "showlegend": len(names) <= _MOST_NAMES}
        traces.append(_dots(numbers, members) | named | {"marker": marker})
    for kind, (symbol, words) in _MARKS.items():
        marker = {"symbol": symbol, "size": 13, "color": "#8a8a8a", "line": {"width": 2}}
        traces.append(_dots(numbers, numbers["selected"][kind]) | {"name": words, "marker": marker})
    plain = {"showticklabels": False, "showgrid": False}
    title = f"{count(numbers['samples'])} samples of {numbers['device']} at {numbers['level']}, by class"
    drawn = with_key(figure(traces, title, axis("", **plain), axis("", **plain)))
    drawn["layout"]["height"] = 560
    return drawn


def _dots(numbers: Numbers, members: Sequence[int]) -> dict[str, Any]:
    points, labels, names = numbers["points"], numbers["labels"], numbers["classes"]
    return {
        "type": "scatter", "mode": "markers", "x": [points[at][0] for at in members],
        "y": [points[at][1] for at in members], "text": [names[labels[at]] for at in members],
        "hovertemplate": "class %{text}<extra></extra>",
    }  # fmt: skip


def _level(finished: Finished) -> str:
    """That of the method, where it splits the model; else the usual one, or the highest."""
    levels, method = finished.levels, finished.federation.method
    wanted = (getattr(method, "split", None), getattr(method, "level", None), _USUAL)
    return next((level for level in wanted if level in levels), levels[-1])


def _embedded(points: Tensor, seed: int) -> list[list[float]]:
    from sklearn.manifold import TSNE  # takes a second, and is only needed here

    # The exact form: the faster one sums in an order that hangs on threads.
    perplexity = min(_PERPLEXITY, (len(points) - 1) / 3)
    made = TSNE(2, perplexity=perplexity, method="exact", random_state=seed).fit_transform(points.numpy())
    found: list[list[float]] = made.astype(float).tolist()
    return found


def _neighbours_alike(points: Tensor, labels: Tensor) -> float:
    """The share of points whose nearest other point has the same label."""
    distances = torch.cdist(points, points).fill_diagonal_(torch.inf)
    return float((labels[distances.argmin(1)] == labels).double().mean())


MAP = Analysis(
    "A map of samples",
    "t-SNE of the features of one device's samples: what the final model holds for alike lies close together.",
    look,
    show,
)
