"""The page of a plan: which method asks what of which class of devices, and how many could take part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from undergrowth.core import InputError
from undergrowth.report.figures import Figure, axis, figure, with_key
from undergrowth.report.html import Page, escape
from undergrowth.report.tables import count, duration, energy, operations, size
from undergrowth.runs.atomic_files import replace_file
from undergrowth.runs.config import Experiment
from undergrowth.runs.planning import takes_part

Row = dict[str, Any]

COLUMNS = (
    "method", "device class", "devices", "time", "memory", "down", "up", "computed", "energy", "verdict",
    "can take part",
)  # fmt: skip

# Lighter to darker with the seconds; told apart by most eyes.
_VERDICTS = {
    "fits": ("#bfe6d3", "#1f8a5f"),
    "too slow": ("#f3cf7a", "#c9741c"),
    "too big": ("#9aa0a6", "#9aa0a6"),
}
_ROW = 26  # pixels for a method


def cells(row: Row) -> tuple[Any, ...]:
    """A row as people read it, without its method."""
    return (
        row["device"], count(row["devices"]), duration(row["seconds"]), size(row["memory_bytes"]),
        size(row["bytes_down"]), size(row["bytes_up"]), operations(row["flops"]), energy(row["joules"]), row["verdict"],
        f"{count(row['fitting'])} of {count(row['devices'])}",
    )  # fmt: skip


def heading(chosen: Experiment) -> str:
    by = "no deadline" if chosen.fleet.deadline is None else f"a deadline of {duration(chosen.fleet.deadline)}"
    return f"One round of {chosen.model.name} on {chosen.data.name}, fleet {chosen.fleet.name}, {by}"


def write(rows: Sequence[Row], chosen: Experiment, notes: Sequence[str], target: str | Path) -> Path:
    path = Path(target).expanduser()
    if path.is_dir():
        raise InputError(f"'{target}' is a folder; name a file for the plan, such as '{path / 'plan.html'}'")
    replace_file(path, page(rows, chosen, notes).render().encode("utf-8"))
    return path


def page(rows: Sequence[Row], chosen: Experiment, notes: Sequence[str] = ()) -> Page:
    built = Page(f"Plan: {chosen.model.name} on {chosen.data.name}, {chosen.fleet.name}")
    built.add(f"<h1>{escape(built.title)}</h1>")
    built.add(f'<p class="quiet">{escape(heading(chosen))}. Nothing was trained.</p>')
    for note in notes:
        built.add(f"<p>Note: {escape(note)}.</p>")
    text = "For the device of its class whose round takes the median time. Darker: longer."
    built.section("Seconds of a round", text)
    built.figures([seconds(rows)])
    built.section("Who could take part", "Devices that hold the work and are back by the deadline.")
    built.figures([able(rows)])
    built.section("All figures", "For one round of one device.")
    built.table(COLUMNS, [(row["method"], *cells(row)) for row in rows])
    return built


def seconds(rows: Sequence[Row]) -> Figure:
    """Methods × classes: the colour is the verdict, its shade the seconds on a logarithmic scale."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    classes = list(dict.fromkeys(row["device"] for row in rows))
    logs = [math.log10(max(row["seconds"], 1e-9)) for row in rows]
    low, high = min(logs), max(max(logs), min(logs) + 1e-3)
    maps = []
    for verdict, (light, dark) in _VERDICTS.items():
        members = {(row["method"], row["device"]): row for row in rows if row["verdict"] == verdict}
        if not members:
            continue
        grid = [[members.get((method, each)) for each in classes] for method in methods]
        maps.append({
            "type": "heatmap", "x": classes, "y": methods, "xgap": 2, "ygap": 2, "name": verdict,
            "z": [[math.log10(max(row["seconds"], 1e-9)) if row else None for row in line] for line in grid],
            "text": [[_cell_text(row) if row else "" for row in line] for line in grid],
            "customdata": [[_about(row) if row else "" for row in line] for line in grid],
            "zmin": low, "zmax": high, "colorscale": [[0, light], [1, dark]], "showscale": False,
            "texttemplate": "%{text}", "textfont": {"size": 12, "color": "#14181a"}, "hoverongaps": False,
            "hovertemplate": "%{y} on %{x}<br>%{customdata}<extra></extra>",
        })  # fmt: skip
    drawn = figure(maps, "", axis("", type="category", side="top"), _methods_axis())
    drawn["layout"] |= {"height": 110 + _ROW * len(methods), "margin": {"l": 64, "r": 16, "t": 64, "b": 40}}
    keys = [{**_key(colour, place), "text": verdict} for place, (verdict, (_, colour)) in enumerate(_VERDICTS.items())]
    drawn["layout"]["annotations"] = keys
    return drawn


def able(rows: Sequence[Row]) -> Figure:
    """How many devices could take part with every method."""
    counts = takes_part(rows)
    totals = {method: sum(row["devices"] for row in rows if row["method"] == method) for method in counts}
    methods = list(counts)
    bars = []
    for words, colour, values in (
        ("could take part", _VERDICTS["fits"][1], [counts[method] for method in methods]),
        ("could not", _VERDICTS["too big"][0], [totals[method] - counts[method] for method in methods]),
    ):
        bars.append({
            "type": "bar", "orientation": "h", "y": methods, "x": values, "name": words, "marker": {"color": colour},
            "text": [count(value) if value else "" for value in values], "textposition": "inside",
            "insidetextanchor": "middle", "textangle": 0, "hovertemplate": f"%{{y}}: %{{x}} {words}<extra></extra>",
        })  # fmt: skip
    x_axis = axis("devices", rangemode="tozero", range=[0, max(totals.values())])
    drawn = figure(bars, "", x_axis, _methods_axis(), barmode="stack", bargap=0.25)
    drawn["layout"]["height"] = 150 + _ROW * len(methods)
    return with_key(drawn)


def _methods_axis() -> dict[str, Any]:
    return axis("", type="category", autorange="reversed", showgrid=False)


def _cell_text(row: Row) -> str:
    return "too big" if row["verdict"] == "too big" else duration(row["seconds"])


def _about(row: Row) -> str:
    _, _, time, memory, down, up, computed, joules, verdict, fitting = cells(row)
    return (
        f"{verdict}: {fitting} devices could<br>{time}, {memory} of memory<br>{down} down, {up} up<br>"
        f"{computed}, {joules}"
    )


def _key(colour: str, place: int) -> dict[str, Any]:
    """One patch of the key below the map."""
    return {
        "xref": "paper", "yref": "paper", "x": 0.1 * place, "y": 0, "yshift": -28, "xanchor": "left",
        "showarrow": False, "bgcolor": colour, "borderpad": 3, "font": {"color": "#14181a", "size": 12},
    }  # fmt: skip
