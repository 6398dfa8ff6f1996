"""An analysis: a function that computes numbers from a run, and one that adds them to a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from undergrowth.core import map_leaves
from undergrowth.report.analyses.reopened_run import ReopenedRun
from undergrowth.report.figures import Figure, axis, build_figure
from undergrowth.report.html import Page
from undergrowth.report.run_record import RunRecord

Numbers = dict[str, Any]  # can be written as JSON
PROBLEM = "problem"  # the only key in the numbers of a run that cannot be analysed; the value is the reason

COLOUR_SCALE = [[0, "#eef4f0"], [0.5, "#67b492"], [1, "#0f5c3d"]]


@dataclass(frozen=True)
class RunNumbers:
    """The numbers of one run, with its label and the place of its group on the page."""

    place: int
    label: str
    numbers: Numbers


@dataclass(frozen=True)
class Analysis:
    """An analysis of finished runs.

    `compute` returns the numbers of a run, from its record and, if it calls its second argument, from the reopened
    run. `render` adds the numbers of all runs that could be analysed to a page.
    """

    title: str
    text: str  # one sentence about what the section shows
    compute: Callable[[RunRecord, Callable[[], ReopenedRun]], Numbers]
    render: Callable[[Page, Sequence[RunNumbers]], None]
    needs_classes: bool = False  # whether the task of a run must be classification


def heat_map(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]], title: str, **more: Any
) -> Figure:
    """A heat map with the first row at the top; darker is higher."""
    trace = {
        "type": "heatmap", "x": list(columns), "y": list(rows), "z": values, "colorscale": COLOUR_SCALE,
        "hovertemplate": "%{y}<br>%{x}<br>%{z:.3f}<extra></extra>", "hoverongaps": False, **more,
    }  # fmt: skip
    y_axis = axis("", type="category", autorange="reversed")
    height = max(320, min(900, 130 + 22 * len(rows)))
    return build_figure([trace], title, axis("", type="category"), y_axis, height=height)


def add_run_heading(page: Page, runs: Sequence[RunNumbers], run: RunNumbers) -> None:
    """Add the label of `run` as a heading if the page shows several runs."""
    if len(runs) > 1:
        page.section(run.label, level=3)


def round_numbers(values: Any, digits: int = 4) -> Any:
    """Nested lists of numbers, rounded to keep pages small; NaN becomes None."""
    return map_leaves(lambda value: None if value != value else round(value, digits), values)
