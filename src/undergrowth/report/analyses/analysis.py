"""What an analysis is: numbers from a run, and the section of a page that shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from undergrowth.report.analyses.finished import Finished
from undergrowth.report.figures import Figure, axis, figure
from undergrowth.report.html import Page, escape
from undergrowth.report.record import Record

Numbers = dict[str, Any]  # plain enough for JSON
PROBLEM = "problem"  # the only number of a run that could not be analysed: why not, in one sentence

SHADES = [[0, "#eef4f0"], [0.5, "#67b492"], [1, "#0f5c3d"]]


@dataclass(frozen=True)
class Seen:
    """The numbers of one run, with its place among the runs of the page."""

    place: int
    label: str
    numbers: Numbers


@dataclass(frozen=True)
class Analysis:
    """`look` finds the numbers of a run, from its record and, if it asks for it, from the run itself set up again.

    `show` draws them; it is only given runs that could be analysed.
    """

    title: str
    text: str  # what is shown, in one sentence
    look: Callable[[Record, Callable[[], Finished]], Numbers]
    show: Callable[[Page, Sequence[Seen]], None]


def heat_map(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]], title: str, **more: Any
) -> Figure:
    """Rows from the top down; darker is more."""
    drawn = {
        "type": "heatmap", "x": list(columns), "y": list(rows), "z": values, "colorscale": SHADES,
        "hovertemplate": "%{y}<br>%{x}<br>%{z:.3f}<extra></extra>", "hoverongaps": False, **more,
    }  # fmt: skip
    shown = figure([drawn], title, axis("", type="category"), axis("", type="category", autorange="reversed"))
    shown["layout"]["height"] = max(320, min(900, 130 + 22 * len(rows)))
    return shown


def several(page: Page, seen: Sequence[Seen], each: Seen) -> None:
    """Says which run comes next, where there are several."""
    if len(seen) > 1:
        page.add(f"<h3>{escape(each.label)}</h3>")


def rounded(values: Any, digits: int = 4) -> Any:
    """Lists of numbers as short as a page needs them; None for what is no number."""
    if isinstance(values, list):
        return [rounded(value, digits) for value in values]
    return None if values != values else round(values, digits)
