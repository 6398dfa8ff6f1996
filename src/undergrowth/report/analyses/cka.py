"""How alike devices' models are after local training, level by level (Shi, Sheffield thesis, §6.4.1).

Every device trains the final model once. Linear CKA then compares what two of these models make of the same test
samples. Where devices hold unlike data their models drift apart, and the similarity says how far, level by level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import torch

from undergrowth.core import InputError
from undergrowth.report.analyses.analysis import Analysis, Numbers, Seen, heat_map, rounded, several
from undergrowth.report.analyses.finished import Finished
from undergrowth.report.analyses.similarity import cka, hsic
from undergrowth.report.figures import COLOURS, Figure, axis, figure, run_group
from undergrowth.report.html import Page
from undergrowth.report.record import Record
from undergrowth.report.tables import score

_BATCH = 256


def look(record: Record, run: Callable[[], Finished]) -> Numbers:
    finished = run()
    levels, devices, test = finished.levels, finished.devices, finished.test()
    if len(devices) < 2:
        raise InputError(f"similarity needs two devices that can train, and run '{record.run}' has {len(devices)}")
    models, own = finished.local_models("cka")
    parts = test.x.tensor_split(max(1, len(test) // _BATCH))  # of equal sizes, so that all weigh the same
    totals = {level: torch.zeros(len(devices), len(devices), dtype=torch.float64) for level in levels}
    with torch.no_grad():
        for x in finished.bar.track(parts, description="cka: features"):
            maps = [finished.task.model.run(weights, x, maps=levels).maps for weights in models.values()]
            for level in levels:
                totals[level] += hsic([each[level] for each in maps]).cpu()
    found = {level: rounded(cka(total).tolist()) for level, total in totals.items()}
    return {
        "devices": devices,
        "trained_by": "the method's own client" if own else "gradient descent",
        "test_samples": len(test),
        "similarity": found,
        "mean": {level: _mean(_pairs(grid)) for level, grid in found.items()},
    }


def show(page: Page, seen: Sequence[Seen]) -> None:
    for each in seen:
        several(page, seen, each)
        means = {level: value for level, value in each.numbers["mean"].items() if value is not None}
        count = len(each.numbers["devices"])
        if means:
            lowest, highest = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
            page.text(
                f"{count} devices trained the final model once more, with {each.numbers['trained_by']}. On average two "
                f"of their models are most alike at {highest} ({means[highest]:.3f}) and least at {lowest} "
                f"({means[lowest]:.3f}); 1 would mean that nothing drifted apart."
            )
        page.figures(_heat(each, level, grid) for level, grid in each.numbers["similarity"].items())
    page.figures([_means(seen)])
    rows = []
    for each in seen:
        for level, grid in each.numbers["similarity"].items():
            pairs = _pairs(grid)
            ends = (min(pairs), max(pairs)) if pairs else (None, None)
            rows.append((each.label, level, score(_mean(pairs)), *map(score, ends)))
    page.table(("run", "level", "mean similarity", "least alike two", "most alike two"), rows)


def _heat(each: Seen, level: str, grid: list[list[float | None]]) -> Figure:
    devices = each.numbers["devices"]
    return heat_map(devices, devices, grid, f"Similarity at {level}", zmin=0, zmax=1)


def _means(seen: Sequence[Seen]) -> Figure:
    """What the heat maps say on average, all runs side by side."""
    bars = [
        {
            "type": "bar", "x": list(each.numbers["mean"]), "y": list(each.numbers["mean"].values()),
            "name": each.label, "legendgroup": run_group(each.place),
            "marker": {"color": COLOURS[each.place % len(COLOURS)]},
            "hovertemplate": "%{x}<br>%{y:.3f}<extra></extra>",
        }
        for each in seen
    ]  # fmt: skip
    y_axis = axis("similarity", range=[0, 1])
    return figure(bars, "Mean similarity of two devices", axis("level", type="category"), y_axis, barmode="group")


def _pairs(grid: list[list[float | None]]) -> list[float]:
    values = (grid[one][other] for one, other in combinations(range(len(grid)), 2))
    return [value for value in values if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


CKA = Analysis(
    "Similarity of devices' models",
    "Linear CKA of the features that the models of two devices have for the same test samples, after local training.",
    look,
    show,
)
