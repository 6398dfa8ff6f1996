"""Learning efficiency (Shi, Sheffield thesis, §6.4): best accuracy ÷ computing time of all devices together.

The time is that of the rounds. Two more figures add the time of warm rounds before the first round, and leave out the
time of devices whose answers came too late. Training at the server is no time of devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from undergrowth.core import InputError
from undergrowth.report.analyses.analysis import Analysis, Numbers, RunNumbers
from undergrowth.report.analyses.reopened_run import ReopenedRun
from undergrowth.report.figures import axis, build_figure, colour, legend_group
from undergrowth.report.html import Page
from undergrowth.report.run_record import RunRecord, learning_efficiency
from undergrowth.report.tables import duration, score
from undergrowth.report.tables import efficiency as format_efficiency


def compute(record: RunRecord, reopen: Callable[[], ReopenedRun]) -> Numbers:
    """Uses only the record, so it also works for unfinished runs."""
    totals = record.totals
    value = totals.get("learning_efficiency")
    if record.metric.name != "accuracy":
        raise InputError(f"it is an accuracy over time, and the metric of run '{record.run}' is {record.metric.name}")
    if value is None:
        raise InputError(f"run '{record.run}' has no finished round with an accuracy and a cost yet")
    best, seconds = record.best(record.metric), totals["compute_seconds"]
    start = 0.0 if record.start is None else record.start.compute_seconds
    return {
        "learning_efficiency": value,
        "learning_efficiency_with_start": learning_efficiency(record.rounds, seconds + start),
        "learning_efficiency_without_late": learning_efficiency(record.rounds, seconds - record.late_seconds),
        "best_accuracy": best,
        "compute_seconds": seconds,
        "start_compute_seconds": start,
        "late_compute_seconds": record.late_seconds,
    }


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
            duration(run.numbers["start_compute_seconds"]), duration(run.numbers["late_compute_seconds"]),
            format_efficiency(run.numbers["learning_efficiency"]),
            format_efficiency(run.numbers["learning_efficiency_with_start"]),
            format_efficiency(run.numbers["learning_efficiency_without_late"]),
        )
        for run in runs
    ]  # fmt: skip
    columns = (
        "run", "best accuracy", "computing time of devices", "before the first round", "of late devices",
        "learning efficiency", "with what came before", "without late devices",
    )  # fmt: skip
    page.table(columns, rows)


EFFICIENCY = Analysis(
    "Learning efficiency", "The best accuracy divided by the computing time of all devices together.", compute, render
)
