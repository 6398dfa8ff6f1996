"""Sections of a page about participation: by round, over time, by device class, and lost classes of samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from undergrowth.report.figures import OUTCOMES, Figure, add_legend, axis, build_figure, outcomes_per_round
from undergrowth.report.html import Page
from undergrowth.report.partition import tiers_by_device
from undergrowth.report.run_record import RunRecord
from undergrowth.report.tables import count
from undergrowth.report.timeline_figure import timeline_figure

_MAX_TIERS = 24
_MAX_CLASSES = 200
_ARRIVED, _NEVER_ARRIVED, _NEVER_ASKED = range(3)
_PARTICIPATION = (("arrived at least once", "#2a9d6f"), ("asked, never arrived", "#d1603d"), ("never asked", "#8a8a8a"))


def participation_sections(
    page: Page, records: Sequence[RunRecord], labels: Sequence[str], populations: Sequence[Any]
) -> None:
    """Add the sections to `page`. `populations` has None for a run whose data is not available."""
    runs = list(zip(records, labels, populations, strict=True))
    with_tiers = [(record, label, tiers_by_device(record, population)) for record, label, population in runs]
    text = (
        "Requests to devices in each round, by outcome. Late: after the deadline. Refused: the update was not usable."
    )
    _add_section(page, "Participation per round", text, [outcomes_per_round(*run[:2]) for run in runs])
    text = "Light: download. Dark: computing. Medium: upload. A cross marks the time at which an update was given up."
    _add_section(page, "Timeline", text, [timeline_figure(*run) for run in with_tiers], full_width=True)
    text = "Outcomes of all requests to the devices of a class."
    _add_section(page, "Participation by device class", text, [outcomes_by_tier(*run) for run in with_tiers])
    text = "Fraction of the training samples of each class on devices whose updates arrived, and on the others."
    _add_section(page, "Lost classes", text, [lost_classes(*run) for run in runs])


def _add_section(page: Page, title: str, text: str, figures: list[Figure | None], full_width: bool = False) -> None:
    if any(figures):
        page.section(title, text)
        for group in [[figure] for figure in figures] if full_width else [figures]:
            page.figures(group)


def outcomes_by_tier(record: RunRecord, label: str, tiers: Mapping[str, str]) -> Figure | None:
    """The outcomes of all requests, by device class."""
    totals: dict[str, Counter[str]] = {}
    for device, row in record.activity.counts.items():
        counted = totals.setdefault(tiers.get(device, ""), Counter())
        counted.update({"devices": 1, "asked": row["asked"], "arrived": row["arrived"]})
        counted.update({outcome: row[outcome] for outcome in ("late", "lost", "refused")})
    totals.pop("", None)  # devices of unknown class
    if not totals:
        return None
    shown = dict(sorted(totals.items(), key=lambda item: item[1]["arrived"] / item[1]["asked"])[:_MAX_TIERS])
    names = [f"{tier} ({count(counted['devices'])})" for tier, counted in shown.items()]
    asked = [counted["asked"] for counted in shown.values()]
    bars = []
    for outcome, colour in OUTCOMES.items():
        numbers = [counted[outcome] for counted in shown.values()]
        if not any(numbers):
            continue
        pairs = list(zip(numbers, asked, strict=True))
        bars.append({
            "type": "bar", "orientation": "h", "y": names, "name": outcome, "marker": {"color": colour},
            "x": [number / total for number, total in pairs],
            "customdata": [[count(number), count(total)] for number, total in pairs],
            "hovertemplate": f"%{{y}}<br>%{{customdata[0]}} of %{{customdata[1]}} {outcome}: %{{x:.0%}}<extra></extra>",
        })  # fmt: skip
    x_axis = axis("fraction of requests", tickformat=".0%", range=[0, 1], dtick=0.25)
    layout = {"barmode": "stack", "bargap": 0.25, "height": max(300, 150 + 28 * len(shown))}
    return add_legend(build_figure(bars, label, x_axis, axis("", type="category"), **layout))


def lost_classes(record: RunRecord, label: str, population: Any) -> Figure | None:
    """The fraction of each class's training samples by the participation of the devices that hold them."""
    counts = record.activity.counts
    if population is None or not counts or population.task != "classification":
        return None
    samples = population.counts()[:, :_MAX_CLASSES]
    participation = np.array([_participation(counts.get(device)) for device in population.devices])
    totals = np.maximum(samples.sum(axis=0), 1)
    classes = [str(name) for name in population.dataset.class_names] or [str(at) for at in range(samples.shape[1])]
    bars = []
    for kind, (words, colour) in enumerate(_PARTICIPATION):
        numbers = samples[participation == kind].sum(axis=0)
        if kind != _ARRIVED and not numbers.any():
            continue
        about = f"%{{y:.0%}} {words}<br>%{{customdata[0]}} of %{{customdata[1]}} samples"
        bars.append({
            "type": "bar", "x": classes[:_MAX_CLASSES], "y": (numbers / totals).tolist(), "name": words,
            "marker": {"color": colour}, "hovertemplate": f"class %{{x}}<br>{about}<extra></extra>",
            "customdata": [[count(number), count(total)] for number, total in zip(numbers, totals, strict=True)],
        })  # fmt: skip
    y_axis = axis("fraction of its samples", tickformat=".0%", range=[0, 1], dtick=0.25)
    lost = samples[participation != _ARRIVED].sum() / totals.sum()
    title = f"{label}: {lost:.0%} of all samples never arrived" if lost else label
    return add_legend(build_figure(bars, title, axis("class", type="category"), y_axis, barmode="stack", bargap=0.2))


def _participation(row: Mapping[str, Any] | None) -> int:
    """Index in `_PARTICIPATION` for the counts of a device."""
    if row is None:
        return _NEVER_ASKED
    return _ARRIVED if row["rounds"] else _NEVER_ARRIVED
