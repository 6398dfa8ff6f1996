"""Learning efficiency (Shi, Sheffield thesis, §6.4): best accuracy ÷ seconds that all devices computed, together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from undergrowth.core import InputError
from undergrowth.report.analyses.analysis import Analysis, Numbers, Seen
from undergrowth.report.analyses.finished import Finished
from undergrowth.report.figures import COLOURS, axis, figure, run_group
from undergrowth.report.html import Page
from undergrowth.report.record import Record
from undergrowth.report.tables import duration, score
from undergrowth.report.tables import efficiency as written


def look(record: Record, run: Callable[[], Finished]) -> Numbers:
    """Needs the store alone; of an unfinished run, where it stands."""
    totals = record.totals
    value = totals.get("learning_efficiency")
    if value is None:
        raise InputError(f"run '{record.run}' has no finished round with an accuracy and a price yet")
    best, spent = record.best_accuracy, totals["compute_seconds"]
    return {"learning_efficiency": value, "best_accuracy": best, "compute_seconds": spent}


def show(page: Page, seen: Sequence[Seen]) -> None:
    values = {each.label: each.numbers["learning_efficiency"] for each in seen}
    best = max(values, key=values.__getitem__)
    if len(seen) > 1:
        others = max(value for label, value in values.items() if label != best)
        page.text(f"{best} learns most for its time: {values[best] / others:.3g} times as much as the next best.")
    bars = [
        {
            "type": "bar", "x": [each.label], "y": [each.numbers["learning_efficiency"]], "name": each.label,
            "legendgroup": run_group(each.place), "marker": {"color": COLOURS[each.place % len(COLOURS)]},
            "hovertemplate": "%{x}<br>%{y:.4~g} a second<extra></extra>",
        }
        for each in seen
    ]  # fmt: skip
    y_axis = axis("accuracy for a second", rangemode="tozero")
    page.figures([figure(bars, "Learning efficiency", axis("", type="category"), y_axis, bargap=0.4)])
    rows = [
        (
            each.label, score(each.numbers["best_accuracy"]), duration(each.numbers["compute_seconds"]),
            written(each.numbers["learning_efficiency"]),
        )
        for each in seen
    ]  # fmt: skip
    page.table(("run", "best accuracy", "computing time of devices", "learning efficiency"), rows)


EFFICIENCY = Analysis(
    "Learning efficiency",
    "The best accuracy divided by the seconds that all devices together spent computing.",
    look,
    show,
)
