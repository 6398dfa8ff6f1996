"""Parts of all Plotly figures: layout, colours, legends and axes; and the figure of outcomes per round.

A figure is the plain dictionary that plotly.js reads, so that it does not depend on the version of the Python package.
Functions return None if there is nothing to draw.
"""

from __future__ import annotations

from typing import Any

from undergrowth.report.run_record import RunRecord, finite

Figure = dict[str, Any]

# Distinguishable for most readers, on a white and on a black background.
COLOURS = ("#2a9d6f", "#d1603d", "#4f7fd1", "#c79a1e", "#9a5fc0", "#2fa3b0", "#c2497a", "#8a8a8a")
_DASHES = ("solid", "dash", "dot", "dashdot")
_MAX_ROUNDS_WITH_TICKS = 12  # one tick per round

OUTCOMES = {"arrived": "#2a9d6f", "late": "#c79a1e", "lost": "#8a8a8a", "refused": "#d1603d"}  # with their colours
_TIME_UNITS = ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"), (0.0, "milliseconds"))


def build_figure(data: list[dict[str, Any]], title: str, x: dict[str, Any], y: dict[str, Any], **layout: Any) -> Figure:
    """A figure in the style of all pages. The page's script sets the colours of text and grid, light or dark."""
    base = {
        "title": {"text": title},  # shown above the plot by the page
        "margin": {"l": 56, "r": 12, "t": 12, "b": 48},
        "height": 320,
        "hovermode": "closest",
        "showlegend": False,  # the page has one legend for all figures
        "xaxis": {"zeroline": False, "automargin": True, **x},
        "yaxis": {"zeroline": False, "automargin": True, **y},
    }
    return {"data": data, "layout": {**base, **layout}}


def add_legend(figure: Figure) -> Figure:
    """`figure` with its own legend above the plot."""
    legend = {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"}
    margin = {**figure["layout"]["margin"], "t": 40}
    figure["layout"] |= {"showlegend": True, "legend": legend, "margin": margin}
    return figure


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis as plotly reads it. `more`: its other properties, such as tickformat."""
    return {"title": {"text": title}, **more}


def shorten(text: str, length: int) -> str:
    """`text` in at most `length` characters, for an axis or a title."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def legend_group(place: int) -> str:
    """The group of all traces of a group of runs, which the page hides and shows together."""
    return f"group-{place}"


def colour(place: int) -> str:
    """The colour of a group of runs, by its place on the page."""
    return COLOURS[place % len(COLOURS)]


def line_style(place: int) -> dict[str, Any]:
    """The line of a group of runs, by its place on the page."""
    return {"color": colour(place), "dash": _DASHES[place // len(COLOURS) % len(_DASHES)], "width": 2}


def outcomes_per_round(record: RunRecord, label: str) -> Figure | None:
    """The number of requests to devices in each round, by outcome."""
    if not record.rounds:
        return None
    x = [row["round"] for row in record.rounds]
    bars = []
    for outcome, bar_colour in OUTCOMES.items():
        numbers = [record.answers(row).get(outcome) or 0 for row in record.rounds]
        if outcome != "arrived" and not any(numbers):
            continue
        bars.append({
            "type": "bar", "x": x, "y": numbers, "name": outcome, "marker": {"color": bar_colour},
            "hovertemplate": f"round %{{x}}<br>%{{y}} {outcome}<extra></extra>",
        })  # fmt: skip
    y_axis = axis("requests", rangemode="tozero")
    figure = build_figure(bars, label, round_axis(len(x)), y_axis, barmode="stack", bargap=0.15)
    return add_legend(figure) if len(bars) > 1 else figure


def time_unit(longest: float) -> tuple[float, str]:
    """Seconds per unit, and the name of the unit in which `longest` seconds are best written."""
    seconds, unit = next((seconds, unit) for seconds, unit in _TIME_UNITS if longest >= seconds)
    return seconds or 1e-3, unit


def round_axis(rounds: int) -> dict[str, Any]:
    """The axis of a figure about `rounds` rounds."""
    return axis("round", dtick=1) if rounds <= _MAX_ROUNDS_WITH_TICKS else axis("round")


def cost_of(row: dict[str, Any], cost: str) -> float | None:
    """The `cost` of a round or a device; None if it is unknown, as for a device that never took part."""
    if cost == "bytes":
        down, up = finite(row.get("bytes_down")), finite(row.get("bytes_up"))
        return None if down is None or up is None else down + up
    return finite(row.get("simulated_seconds" if cost == "seconds" else cost))
