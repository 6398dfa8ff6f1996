"""The section of a page about the models of devices: who gains and who loses by joining."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from undergrowth.report.device_figures import MAX_POINTS, box_figure
from undergrowth.report.figures import Figure, add_legend, axis, build_figure, colour
from undergrowth.report.html import Page, html_table
from undergrowth.report.personal_tables import (
    CHANGE_COLUMNS,
    COLUMNS,
    TIER_COLUMNS,
    change_rows,
    headline,
    personal_rows,
    tier_rows,
)
from undergrowth.report.run_record import RunRecord
from undergrowth.report.tables import count
from undergrowth.runs.relative_accuracy import LOCAL, PersonalAccuracy

_BINS = 20
_TEXT = (
    "Every device also trains a model alone. Relative accuracy is the accuracy of a model on the device's own test "
    "samples minus that of the model trained alone: below 0 the device would be better off without the federation. The "
    "best and the worst 10 % are a tenth of the devices each, rounded up. Variances are in percent²."
)


def add_personal_sections(page: Page, records: Sequence[RunRecord], labels: Sequence[str]) -> None:
    """For every run that evaluated its devices' models: figures and tables; for several, the changes between them."""
    shown = [(each, label) for each, label in zip(records, labels, strict=True) if each.personal is not None]
    if not shown:
        return
    page.section("Who gains by joining", _TEXT)
    for record, label in shown:
        personal = record.personal
        assert personal is not None
        page.text((f"{label}: " if len(records) > 1 else "") + headline(personal) + ".")
        page.figures([relative_boxes(personal), relative_against_local(personal), relative_histogram(personal)])
        page.table(COLUMNS, personal_rows(personal))
        if len(set(personal.tiers)) > 1:
            page.fold("By device class", html_table(TIER_COLUMNS, tier_rows(personal)))
    rows = change_rows([record for record, _ in shown], [label for _, label in shown]) if len(shown) > 1 else []
    if rows:
        page.section("Who gains or loses between runs", f"Against {shown[0][1]}, by the names of devices.")
        page.table(CHANGE_COLUMNS, rows)


def relative_boxes(personal: PersonalAccuracy) -> Figure:
    """Minimum, quartiles and maximum of the relative accuracy, a box for each model."""
    values = [personal.relative(model) for model in personal.compared]
    return box_figure(personal.compared, values, "Relative accuracy of devices", _relative_axis())


def relative_against_local(personal: PersonalAccuracy) -> Figure:
    """The relative accuracy of each device against the accuracy of the model that it trained alone."""
    devices = len(personal.devices)
    step = -(-devices * len(personal.compared) // MAX_POINTS) or 1
    names = [list(pair) for pair in zip(personal.devices, personal.tiers, strict=True)][::step]
    traces = [
        {
            "type": "scatter", "mode": "markers", "name": model,
            "x": [round(value, 4) for value in personal.accuracies[LOCAL][::step]],
            "y": [round(value, 4) for value in personal.relative(model)[::step]], "customdata": names,
            "marker": {"color": colour(place), "size": 7, "opacity": 0.7},
            "hovertemplate": "%{customdata[0]} (%{customdata[1]})<br>alone %{x:.1%}, relative %{y:+.1%}<extra></extra>",
        }
        for place, model in enumerate(personal.compared)
    ]  # fmt: skip
    shown = f" ({count(len(names))} of {count(devices)} shown)" if len(names) < devices else ""
    x, y = axis("accuracy of the local model", tickformat=".0%"), _relative_axis()
    return add_legend(build_figure(traces, f"Relative against local accuracy{shown}", x, y))


def relative_histogram(personal: PersonalAccuracy) -> Figure:
    """The number of devices by relative accuracy, a line for each model."""
    values = {model: personal.relative(model) for model in personal.compared}
    everything = [value for each in values.values() for value in each]
    edges = np.linspace(min(-0.05, *everything), max(0.05, *everything), _BINS + 1)
    lines = [
        {
            "type": "scatter", "mode": "lines", "name": model, "line": {"shape": "hvh", "color": colour(place)},
            "x": ((edges[:-1] + edges[1:]) / 2).tolist(), "y": np.histogram(each, edges)[0].tolist(),
            "hovertemplate": "relative %{x:+.1%}<br>%{y} devices<extra></extra>",
        }
        for place, (model, each) in enumerate(values.items())
    ]  # fmt: skip
    y = axis("devices", rangemode="tozero")
    return add_legend(build_figure(lines, "Devices by relative accuracy", _relative_axis(), y))


def _relative_axis() -> dict[str, object]:
    return axis("relative accuracy", tickformat="+.0%", zeroline=True)
