"""The similarity of device models after local training, by level (Shi, Sheffield thesis, §6.4.1).

Every device trains the final model once. Linear CKA then compares the features that two of these models compute for the
same test samples. Models of devices with different data drift apart; a lower similarity means more drift.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import torch

from undergrowth.core import InputError
from undergrowth.report.analyses.analysis import Analysis, Numbers, RunNumbers, add_run_heading, heat_map, round_numbers
from undergrowth.report.analyses.reopened_run import ReopenedRun
from undergrowth.report.analyses.similarity import cka, hsic
from undergrowth.report.figures import Figure, axis, build_figure, colour, legend_group
from undergrowth.report.html import Page
from undergrowth.report.run_record import RunRecord
from undergrowth.report.tables import score

_BATCH = 256


def compute(record: RunRecord, reopen: Callable[[], ReopenedRun]) -> Numbers:
    run = reopen()
    levels, devices, test = run.levels, run.devices, run.test_samples()
    if len(devices) < 2:
        raise InputError(f"similarity needs two devices that can train, and run '{record.run}' has {len(devices)}")
    models, by_method = run.local_models("cka")
    parts = test.x.tensor_split(max(1, len(test) // _BATCH))  # of equal sizes, so that they have equal weight
    totals = {level: torch.zeros(len(devices), len(devices), dtype=torch.float64) for level in levels}
    with torch.no_grad():
        for x in run.progress.track(parts, description="cka: features"):
            maps = [run.task.model.run(weights, x, maps=levels).maps for weights in models.values()]
            for level in levels:
                totals[level] += hsic([each[level] for each in maps]).cpu()
    similarity = {level: round_numbers(cka(total).tolist()) for level, total in totals.items()}
    return {
        "devices": devices,
        "trained_by": "the method's client" if by_method else "gradient descent",
        "test_samples": len(test),
        "similarity": similarity,
        "mean": {level: _mean(_pairs(grid)) for level, grid in similarity.items()},
    }


def render(page: Page, runs: Sequence[RunNumbers]) -> None:
    for run in runs:
        add_run_heading(page, runs, run)
        means = {level: value for level, value in run.numbers["mean"].items() if value is not None}
        devices = run.numbers["devices"]
        if means:
            lowest, highest = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
            page.text(
                f"{len(devices)} devices trained the final model once more, with {run.numbers['trained_by']}. The mean "
                f"similarity of two models is highest at {highest} ({means[highest]:.3f}) and lowest at {lowest} "
                f"({means[lowest]:.3f}); 1 means that the models did not drift apart."
            )
        page.figures(
            heat_map(devices, devices, grid, f"Similarity at {level}", zmin=0, zmax=1)
            for level, grid in run.numbers["similarity"].items()
        )
    page.figures([_mean_figure(runs)])
    rows = []
    for run in runs:
        for level, grid in run.numbers["similarity"].items():
            pairs = _pairs(grid)
            extremes = (min(pairs), max(pairs)) if pairs else (None, None)
            rows.append((run.label, level, score(_mean(pairs)), *map(score, extremes)))
    page.table(("run", "level", "mean similarity", "lowest", "highest"), rows)


def _mean_figure(runs: Sequence[RunNumbers]) -> Figure:
    """The means of the heat maps, for all runs."""
    bars = [
        {
            "type": "bar", "x": list(run.numbers["mean"]), "y": list(run.numbers["mean"].values()),
            "name": run.label, "legendgroup": legend_group(run.place),
            "marker": {"color": colour(run.place)},
            "hovertemplate": "%{x}<br>%{y:.3f}<extra></extra>",
        }
        for run in runs
    ]  # fmt: skip
    y_axis = axis("similarity", range=[0, 1])
    return build_figure(bars, "Mean similarity of two devices", axis("level", type="category"), y_axis, barmode="group")


def _pairs(grid: list[list[float | None]]) -> list[float]:
    values = (grid[first][second] for first, second in combinations(range(len(grid)), 2))
    return [value for value in values if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


CKA = Analysis(
    "Similarity of device models",
    "Linear CKA of the features of the models of two devices for the same test samples, after local training.",
    compute,
    render,
)
