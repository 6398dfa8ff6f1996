"""A plot of a reproduced figure as an SVG image, which a Markdown page can show where no script runs.

It draws the figures of `html_page.draw`: lines over rounds, and lines or bars over columns with their deviations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from undergrowth.report.figures import Figure, shorten

WIDTH, PLOT_HEIGHT = 760, 320  # pixels
LEFT, RIGHT, TOP, BOTTOM, LEGEND_ROW = 60, 20, 34, 56, 20
MAX_TICKS = 6  # of a numeric axis
MAX_LABEL, MAX_TITLE = 22, 92  # characters of the name of a column, and of the title
CHARACTER = 6.5  # width of one
DASHES = {"dash": "8 4", "dot": "2 4", "dashdot": "8 4 2 4"}
GREY = "#888888"

Scale = Callable[[float], float]


def render_svg(figure: Figure) -> str:
    """The image of a figure of lines, points or bars, with its title, axes and legend."""
    traces, layout = [_finite(trace) for trace in figure["data"]], figure["layout"]
    legend, rows = _legend(traces)
    height = TOP + PLOT_HEIGHT + BOTTOM + rows * LEGEND_ROW
    columns = list(dict.fromkeys(x for trace in traces for x in trace["x"]))
    named = layout["xaxis"].get("type") == "category"
    across = _bands(columns) if named else _linear(*_range(columns), LEFT, WIDTH - RIGHT)
    low, high = _value_range(traces)
    upward = _linear(low, high, TOP + PLOT_HEIGHT, TOP)
    places = list(enumerate(columns)) if named else [(x, x) for x in _ticks(*_range(columns))]
    named_places = [(across(x), name if isinstance(name, str) else f"{name:g}") for x, name in places]
    marks = [mark for trace in traces for mark in _marks(trace, traces, columns if named else None, across, upward)]
    labels = (layout["title"]["text"], layout["xaxis"]["title"]["text"], layout["yaxis"]["title"]["text"])
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12" fill="#222222">',
        f"<title>{escape(labels[0])}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *_axes(labels, named_places, [(upward(y), f"{y:g}") for y in _ticks(low, high)]),
        *marks,
        *legend,
        "</svg>",
        "",
    ])  # fmt: skip


def _linear(low: float, high: float, first: float, last: float) -> Scale:
    return lambda value: first + (value - low) / (high - low) * (last - first)


def _bands(columns: Sequence[object]) -> Scale:
    width = (WIDTH - LEFT - RIGHT) / max(1, len(columns))
    return lambda place: LEFT + (place + 0.5) * width


def _finite(trace: Figure) -> Figure:
    """The trace without values that are not finite, such as those of a run that diverged."""
    spreads = _spreads(trace)
    kept = [place for place, value in enumerate(trace["y"]) if math.isfinite(value) and math.isfinite(spreads[place])]
    x, y, array = ([values[place] for place in kept] for values in (trace["x"], trace["y"], spreads))
    return {**trace, "x": x, "y": y, "error_y": {"array": array}}


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=0.0)
    return (low, high) if high > low else (low - 1, high + 1)


def _value_range(traces: Sequence[Figure]) -> tuple[float, float]:
    """The values with their deviations and some room; bars start at 0."""
    ends = [
        value + sign * spread
        for trace in traces
        for value, spread in zip(trace["y"], _spreads(trace), strict=True)
        for sign in (-1, 1)
    ]
    low, high = _range(ends)
    room = 0.05 * (high - low)
    return (0.0, high + room) if any(each["type"] == "bar" for each in traces) else (low - room, high + room)


def _spreads(trace: Figure) -> list[float]:
    return trace.get("error_y", {}).get("array") or [0.0] * len(trace["y"])


def _ticks(low: float, high: float) -> list[float]:
    """At most `MAX_TICKS` round numbers between `low` and `high`."""
    power = 10.0 ** math.floor(math.log10((high - low) / MAX_TICKS))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if (high - low) / (factor * power) <= MAX_TICKS - 1)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _axes(
    labels: tuple[str, str, str], columns: Sequence[tuple[float, str]], values: Sequence[tuple[float, str]]
) -> list[str]:
    bottom, (title, below, beside) = TOP + PLOT_HEIGHT, labels
    parts = [_text(LEFT, 20, shorten(title, MAX_TITLE), 'font-size="13" font-weight="bold"')]
    for y, name in values:
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        parts.append(_text(LEFT - 6, y + 4, name, 'text-anchor="end"'))
    for x, name in columns:
        parts.append(f'<path d="M{x:.1f} {bottom}v4" stroke="{GREY}"/>')
        parts.append(_text(x, bottom + 18, shorten(name, MAX_LABEL), 'text-anchor="middle"'))
    parts.append(f'<path d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}" fill="none" stroke="{GREY}"/>')
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, bottom + 38, below, 'text-anchor="middle"'))
    middle = TOP + PLOT_HEIGHT / 2
    parts.append(_text(16, middle, beside, f'text-anchor="middle" transform="rotate(-90 16 {middle:g})"'))
    return parts


def _marks(
    trace: Figure, traces: Sequence[Figure], columns: Sequence[object] | None, across: Scale, upward: Scale
) -> list[str]:
    """The line, the points or the bars of a trace. `columns`: the names on the axis, if it has names."""
    at = [across(x if columns is None else columns.index(x)) for x in trace["x"]]
    points = [(x, upward(y)) for x, y in zip(at, trace["y"], strict=True)]
    bars = [each for each in traces if each["type"] == "bar"]
    width = 0.7 * (across(1) - across(0)) / max(1, len(bars))
    if trace in bars:
        shift = (bars.index(trace) - (len(bars) - 1) / 2) * width
        points = [(x + shift, y) for x, y in points]
    errors = [
        f'<path d="M{x:.1f} {upward(y - spread):.1f}V{upward(y + spread):.1f}" stroke="{GREY}"/>'
        for (x, _), y, spread in zip(points, trace["y"], _spreads(trace), strict=True)
        if spread
    ]
    colour = _colour(trace)
    if trace in bars:
        zero = upward(0)
        sides = [(x - width / 2, min(y, zero), abs(zero - y)) for x, y in points]
        drawn = [
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{tall:.1f}" fill="{colour}"/>'
            for x, y, tall in sides
        ]
        return drawn + errors
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    style = f'fill="none" stroke="{colour}" stroke-width="2"{_dashes(trace)}'
    line = [f'<path d="M{path}" {style}/>'] if "lines" in trace["mode"] and len(points) > 1 else []
    circles = [_circle(x, y, trace) for x, y in points] if "markers" in trace["mode"] else []
    return errors + line + circles


def _legend(traces: Sequence[Figure]) -> tuple[list[str], int]:
    """The names of the traces below the plot with their colours, and the number of their rows."""
    parts, x, row = [], float(LEFT), 0
    for trace in traces:
        wide = 40 + len(trace["name"]) * CHARACTER
        if x > LEFT and x + wide > WIDTH - RIGHT:
            x, row = float(LEFT), row + 1
        y = TOP + PLOT_HEIGHT + BOTTOM + row * LEGEND_ROW
        if trace["type"] == "bar":
            parts.append(f'<rect x="{x:g}" y="{y - 6}" width="20" height="10" fill="{_colour(trace)}"/>')
        elif "lines" in trace["mode"]:
            style = f'stroke="{_colour(trace)}" stroke-width="2"{_dashes(trace)}'
            parts.append(f'<path d="M{x:g} {y}h20" {style}/>')
        else:
            parts.append(_circle(x + 10, y, trace))
        parts.append(_text(x + 26, y + 4, trace["name"]))
        x += wide
    return parts, row + 1


def _colour(trace: Figure) -> str:
    colour: str = trace.get("marker", {}).get("color") or trace["line"]["color"]
    return colour


def _dashes(trace: Figure) -> str:
    dash = DASHES.get(trace["line"]["dash"])
    return f' stroke-dasharray="{dash}"' if dash else ""


def _circle(x: float, y: float, trace: Figure) -> str:
    """A point; an open one for a published number."""
    open_circle = trace.get("marker", {}).get("symbol") == "circle-open"
    fill, radius = ("none", 5) if open_circle else (_colour(trace), 3.5)
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{fill}" stroke="{_colour(trace)}"/>'


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"{style and " "}{style}>{escape(text)}</text>'
