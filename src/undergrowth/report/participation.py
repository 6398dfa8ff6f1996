"""Who took part: by round, in time, by class of device, and whose classes of samples never arrived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from undergrowth.report.figures import OUTCOMES, Figure, axis, figure, outcomes, with_key
from undergrowth.report.html import Page
from undergrowth.report.partition import tiers
from undergrowth.report.record import Record
from undergrowth.report.tables import count
from undergrowth.report.timeline import timeline

_MOST_TIERS = 24
_MOST_CLASSES = 200
_FATES = (("arrived at least once", "#2a9d6f"), ("asked, never arrived", "#d1603d"), ("never asked", "#8a8a8a"))


def taking_part(built: Page, records: Sequence[Record], names: Sequence[str], populations: Sequence[Any]) -> None:
    """The sections of a page; `populations` has None for a run whose data cannot be had again."""
    classes = [tiers(record, population) for record, population in zip(records, populations)]
    drawn = [outcomes(record, name) for record, name in zip(records, names)]
    if any(drawn):
        text = "Devices that were asked, by what became of their update. Late: after the deadline. Refused: unusable."
        built.section("Who came back", text)
        built.figures(drawn)
    drawn = [timeline(record, name, each) for record, name, each in zip(records, names, classes)]
    if any(drawn):
        text = "Pale: download. Strong: computing. In between: upload. A cross: the update was given up there."
        built.section("Who worked when", text)
        for figure in drawn:  # one below the other: time needs room
            built.figures([figure])
    drawn = [by_tier(record, name, each) for record, name, each in zip(records, names, classes)]
    if any(drawn):
        built.section("Who took part, by class of device", "Of all that a class was asked for, what came of it.")
        built.figures(drawn)
    drawn = [lost_classes(record, name, each) for record, name, each in zip(records, names, populations)]
    if any(drawn):
        text = "The training samples of every class: what share is on devices whose updates arrived, and what is not."
        built.section("Whose classes were lost", text)
        built.figures(drawn)


def by_tier(record: Record, label: str, tiers: Mapping[str, str]) -> Figure | None:
    """What became of what each class of devices was asked for."""
    totals: dict[str, Counter[str]] = {}
    for device, row in record.traffic.counts.items():
        counted = totals.setdefault(tiers.get(device, ""), Counter())
        counted.update({"devices": 1, "asked": row["asked"], "arrived": row["rounds"]})
        counted.update({outcome: row[outcome] for outcome in ("late", "lost", "refused")})
    totals.pop("", None)  # devices whose class nobody knows any more
    if not totals:
        return None
    shown = dict(sorted(totals.items(), key=lambda item: item[1]["arrived"] / item[1]["asked"])[:_MOST_TIERS])
    names = [f"{tier} ({count(counted['devices'])})" for tier, counted in shown.items()]
    bars = []
    for outcome, words, colour in OUTCOMES:
        numbers = [counted[outcome] for counted in shown.values()]
        if not any(numbers):
            continue
        asked = [counted["asked"] for counted in shown.values()]
        bars.append({
            "type": "bar", "orientation": "h", "y": names, "name": words, "marker": {"color": colour},
            "x": [number / all for number, all in zip(numbers, asked)],
            "customdata": [[count(number), count(all)] for number, all in zip(numbers, asked)],
            "hovertemplate": f"%{{y}}<br>%{{customdata[0]}} of %{{customdata[1]}} {words} (%{{x:.0%}})<extra></extra>",
        })  # fmt: skip
    x_axis = axis("share of what was asked", tickformat=".0%", range=[0, 1], dtick=0.25)
    drawn = figure(bars, label, x_axis, axis("", type="category"), barmode="stack", bargap=0.25)
    drawn["layout"]["height"] = max(300, 150 + 28 * len(shown))
    return with_key(drawn)


def lost_classes(record: Record, label: str, population: Any) -> Figure | None:
    """For every class, the shares of its training samples by what became of the devices that hold them."""
    counts = record.traffic.counts
    if population is None or not counts:
        return None
    held = population.counts()[:, :_MOST_CLASSES]
    fates = np.array([_fate(counts.get(device)) for device in population.devices])
    totals = np.maximum(held.sum(axis=0), 1)
    names = [str(name) for name in population.dataset.class_names] or [str(place) for place in range(held.shape[1])]
    bars = []
    for fate, (words, colour) in enumerate(_FATES):
        numbers = held[fates == fate].sum(axis=0)
        if fate and not numbers.any():
            continue
        about = f"%{{y:.0%}} {words}<br>%{{customdata[0]}} of %{{customdata[1]}} samples"
        bars.append({
            "type": "bar", "x": names[:_MOST_CLASSES], "y": (numbers / totals).tolist(), "name": words,
            "marker": {"color": colour}, "hovertemplate": f"class %{{x}}<br>{about}<extra></extra>",
            "customdata": [[count(number), count(all)] for number, all in zip(numbers, totals)],
        })  # fmt: skip
    y_axis = axis("share of its samples", tickformat=".0%", range=[0, 1], dtick=0.25)
    gone = held[fates > 0].sum() / totals.sum()
    title = f"{label}: {gone:.0%} of all samples never arrived" if gone else label
    return with_key(figure(bars, title, axis("class", type="category"), y_axis, barmode="stack", bargap=0.2))


def _fate(row: Mapping[str, Any] | None) -> int:
    """The place in the table of fates."""
    return 2 if row is None else 0 if row["rounds"] else 1
