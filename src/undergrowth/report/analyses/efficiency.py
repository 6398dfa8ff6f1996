"""Learning efficiency (Shi, Sheffield thesis, §6.4): best accuracy ÷ computing time of all devices together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from undergrowth.core import InputError
from undergrowth.report.analyses.analysis import Analysis, Numbers, RunNumbers
from undergrowth.report.analyses.reopened_run import ReopenedRun
from undergrowth.report.figures import axis, build_figure, colour, legend_group
from undergrowth.report.html import Page
from undergrowth.report.run_record import RunRecord, best_accuracy
from undergrowth.report.tables import duration, score
from undergrowth.report.tables import efficiency as format_efficiency


def compute(record: RunRecord, reopen: Callable[[], ReopenedRun]) -> Numbers:
    """Uses only the record, so it also works for unfinished runs."""
    totals = record.totals
    value = totals.get("learning_efficiency")
    if value is None:
        raise InputError(f"run '{record.run}' has no finished round with an accuracy and a cost yet")
    best, seconds = best_accuracy(record.rounds), totals["compute_seconds"]
    return {"learning_efficiency": value, "best_accuracy": best, "compute_seconds": seconds}


def render(page: Page, runs: Sequence[RunNumbers]) -> None:
    values = {run.label: run.numbers["learning_efficiency"] for run in runs}
    best = max(values, key=values.__getitem__)
    if len(runs) > 1:
        others = max(value for label, value in values.items() if label != best)
        page.text(f"{best} has the highest learning efficiency, {values[best] / others:.3g} times the next one.")
    bars = [
        {
            "type": "bar", "x": [run.label], "y": [run.numbers["learning_efficiency"]], "name": run.label,
            "legendgroup": legend_group(run.place), "marker": {"color": colour(run.place)},
            "hovertemplate": "%{x}<br>%{y:.4~g} per second<extra></extra>",
        }
        for run in runs
    ]  # fmt: skip
    y_axis = axis("accuracy per second", rangemode="tozero")
    page.figures([build_figure(bars, "Learning efficiency", axis("", type="category"), y_axis, bargap=0.4)])
    rows = [
        (
            run.label, score(run.numbers["best_accuracy"]), duration(run.numbers["compute_seconds"]),
            format_efficiency(run.numbers["learning_efficiency"]),
        )
        for run in runs
    ]  # fmt: skip
    page.table(("run", "best accuracy", "computing time of devices", "learning efficiency"), rows)


EFFICIENCY = Analysis(
    "Learning efficiency", "The best accuracy divided by the computing time of all devices together.", compute, render
)
