"""The section of a report about devices whose samples change: scores over time, and recovery after shifts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from undergrowth.report.curves import plain, transparent
from undergrowth.report.figures import COLOURS, Figure, add_legend, axis, build_figure, colour, round_axis
from undergrowth.report.html import Page
from undergrowth.report.tables import count, score
from undergrowth.runs.stream_scores import Recovery, StreamScores

RECOVERY_COLUMNS = ("shift in round", "before", "lowest", "rounds to 90 %", "devices back")
_MAX_DEVICES_IN_MAP = 60  # of more, evenly spaced ones are drawn
_SHIFT_LINE = {"color": COLOURS[-1], "width": 1, "dash": "dot"}


def add_stream(page: Page, label: str, scores: StreamScores) -> None:
    """The scores of the devices over time, with the shifts marked, and a table of the recoveries."""
    name = scores.metric.name
    page.section(
        f"Devices over time: {label}",
        f"The {name} of the model that each device would use, on test samples of its distribution in that round. "
        "Band: the middle four fifths of the devices. Dotted lines: a shift begins.",
    )
    page.figures([_over_time(scores), _by_device(scores)])
    if scores.shifts:
        page.text(
            f"Recovery: rounds from a shift until the mean {name}, after its lowest value, is again at 90 % of its "
            "value before the shift. Devices back: those whose own value is, before the next shift."
        )
        page.table(RECOVERY_COLUMNS, recovery_rows(scores.recoveries))


def recovery_rows(recoveries: Sequence[Recovery]) -> list[tuple[Any, ...]]:
    """One row per shift, for `RECOVERY_COLUMNS`."""
    return [
        (
            each.round, score(each.before), score(each.lowest),
            "not reached" if each.rounds is None else count(each.rounds), f"{each.devices_back} of {each.devices}",
        )
        for each in recoveries
    ]  # fmt: skip


def _over_time(scores: StreamScores) -> Figure:
    """Mean over devices with a band, and the worst tenth, by round."""
    name, x, (low, high) = scores.metric.name, list(scores.rounds), scores.band
    hover = f"round %{{x}}<br>{name} %{{y:.4f}}<extra></extra>"
    line = {"type": "scatter", "mode": "lines", "x": x, "hovertemplate": hover}
    traces = [
        {
            "type": "scatter", "mode": "lines", "x": [*x, *x[::-1]], "y": plain([*low, *high[::-1]]), "fill": "toself",
            "fillcolor": transparent(colour(0)), "line": {"width": 0}, "hoverinfo": "skip", "name": "four fifths",
        },
        {**line, "y": plain(scores.mean), "name": "mean", "line": {"color": colour(0), "width": 2}},
        {**line, "y": plain(scores.worst_tenth), "name": "worst tenth", "line": {"color": colour(1), "width": 2}},
    ]  # fmt: skip
    y_axis = axis(name, tickformat=".1~%" if scores.metric.is_fraction else "")
    figure = build_figure(traces, f"{name.capitalize()} of the devices", round_axis(max(x)), y_axis)
    figure["layout"]["shapes"] = [_shift_line(round) for round in scores.shifts]
    return add_legend(figure)


def _by_device(scores: StreamScores) -> Figure:
    """A map of the scores, devices × rounds."""
    devices = scores.devices[:: -(-len(scores.devices) // _MAX_DEVICES_IN_MAP)]
    cells = [[found.get(device) for found in scores.scores] for device in devices]
    trace = {
        "type": "heatmap", "x": list(scores.rounds), "y": devices, "colorscale": "Viridis",
        "z": [[None if value is None else plain([value])[0] for value in row] for row in cells],
        "hovertemplate": f"%{{y}}<br>round %{{x}}<br>{scores.metric.name} %{{z:.4f}}<extra></extra>",
    }  # fmt: skip
    title = f"{scores.metric.name.capitalize()} of each device"
    figure = build_figure([trace], title, round_axis(max(scores.rounds)), axis("", type="category"))
    figure["layout"]["shapes"] = [_shift_line(round) for round in scores.shifts]
    return figure


def _shift_line(round: int) -> dict[str, Any]:
    """A vertical line just before a round."""
    place = round - 0.5
    return {"type": "line", "x0": place, "x1": place, "yref": "paper", "y0": 0, "y1": 1, "line": _SHIFT_LINE}
