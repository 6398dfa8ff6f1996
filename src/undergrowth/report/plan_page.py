"""The HTML page of a plan: the cost of each method for each device class, and how many devices can take part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undergrowth.exchange import ROUND_COSTS
from undergrowth.report.figures import Figure, add_legend, axis, build_figure
from undergrowth.report.html import Page
from undergrowth.report.plan_tree import TREE_COLUMNS, explain_tree, tree_lines
from undergrowth.report.tables import cost_cells, cost_titles, count, duration, size
from undergrowth.runs.atomic_files import check_target, replace_file
from undergrowth.runs.config import Experiment
from undergrowth.runs.planning import Row, takes_part

if TYPE_CHECKING:
    from undergrowth.report.plan_report import PlanReport

COLUMNS = (
    "method", "device class", "devices", "time", "runtime", "training", *cost_titles(ROUND_COSTS), "verdict",
    "can take part",
)  # fmt: skip

# The shortest and the longest time of each verdict.
_VERDICTS = {"fits": ("#bfe6d3", "#1f8a5f"), "too slow": ("#f3cf7a", "#c9741c"), "too big": ("#9aa0a6", "#9aa0a6")}
_PIXELS_PER_METHOD = 26
_PIXELS_PER_PATCH = 70  # of the legend


def row_cells(row: Row) -> tuple[Any, ...]:
    """The formatted cells of a row, without its method."""
    return (
        row["device"], count(row["devices"]), duration(row["seconds"]), size(row["runtime_bytes"]),
        size(row["memory_bytes"]), *cost_cells(row, ROUND_COSTS), row["verdict"],
        f"{count(row['fitting'])} of {count(row['devices'])}",
    )  # fmt: skip


def heading(planned: Experiment) -> str:
    deadline = "no deadline" if planned.fleet.deadline is None else f"a deadline of {duration(planned.fleet.deadline)}"
    return f"One round of {planned.model.name} on {planned.data.name}, fleet {planned.fleet.name}, {deadline}"


def write_plan_page(plan: PlanReport, target: str | Path) -> Path:
    """Writes the page to the file `target` and returns its path."""
    path = check_target(target, "plan.html")
    replace_file(path, build_plan_page(plan).render().encode("utf-8"))
    return path


def build_plan_page(plan: PlanReport) -> Page:
    """The page with advice, figures and all rows."""
    planned = plan.planned
    page = Page(f"Plan: {planned.model.name} on {planned.data.name}, {planned.fleet.name}")
    page.section(page.title, f"{heading(planned)}. Nothing was trained.", level=1)
    for note in plan.notes:
        page.text(f"Note: {note}.")
    if plan.advice:
        page.section("Advice", "Every change was priced.")
        for sentence in plan.advice:
            page.text(sentence)
    text = "For the device of each class whose round takes the median time. Darker: longer."
    page.section("Time of a round", text)
    page.figures([time_figure(plan)])
    page.section("Possible participants", "Devices with enough memory that finish by the deadline.")
    page.figures([participants_figure(plan)])
    page.section("All numbers", "For one round of one device.")
    page.table(COLUMNS, [(row["method"], *row_cells(row)) for row in plan])
    if plan.tree:
        page.section("The servers of the tree", f"For one round of the root. {explain_tree(plan.tree)}")
        page.table(TREE_COLUMNS, tree_lines(plan.tree))
    return page


def time_figure(rows: Sequence[Row]) -> Figure:
    """Methods × device classes. The colour is the verdict, its shade the time on a logarithmic scale."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    classes = list(dict.fromkeys(row["device"] for row in rows))
    logarithms = [_log_seconds(row) for row in rows]
    low, high = min(logarithms), max(max(logarithms), min(logarithms) + 1e-3)
    heat_maps = []
    for verdict, (light, dark) in _VERDICTS.items():
        members = {(row["method"], row["device"]): row for row in rows if row["verdict"] == verdict}
        if not members:
            continue
        grid = [[members.get((method, each)) for each in classes] for method in methods]
        heat_maps.append({
            "type": "heatmap", "x": classes, "y": methods, "xgap": 2, "ygap": 2, "name": verdict,
            "z": [[_log_seconds(row) if row else None for row in line] for line in grid],
            "text": [[_cell_text(row) if row else "" for row in line] for line in grid],
            "customdata": [[_hover_text(row) if row else "" for row in line] for line in grid],
            "zmin": low, "zmax": high, "colorscale": [[0, light], [1, dark]], "showscale": False,
            "texttemplate": "%{text}", "textfont": {"size": 12, "color": "#14181a"}, "hoverongaps": False,
            "hovertemplate": "%{y} on %{x}<br>%{customdata}<extra></extra>",
        })  # fmt: skip
    figure = build_figure(heat_maps, "", axis("", type="category", side="top"), _methods_axis())
    figure["layout"] |= {
        "height": 110 + _PIXELS_PER_METHOD * len(methods),
        "margin": {"l": 64, "r": 16, "t": 64, "b": 40},
    }
    figure["layout"]["annotations"] = [
        {**_legend_patch(colour, place), "text": verdict}
        for place, (verdict, (_, colour)) in enumerate(_VERDICTS.items())
    ]
    return figure


def participants_figure(rows: Sequence[Row]) -> Figure:
    """The number of devices that can take part, by method."""
    counts = takes_part(rows)
    totals = {method: sum(row["devices"] for row in rows if row["method"] == method) for method in counts}
    methods = list(counts)
    bars = []
    for words, colour, values in (
        ("can take part", _VERDICTS["fits"][1], [counts[method] for method in methods]),
        ("cannot", _VERDICTS["too big"][0], [totals[method] - counts[method] for method in methods]),
    ):
        bars.append({
            "type": "bar", "orientation": "h", "y": methods, "x": values, "name": words, "marker": {"color": colour},
            "text": [count(value) if value else "" for value in values], "textposition": "inside",
            "insidetextanchor": "middle", "textangle": 0, "hovertemplate": f"%{{y}}: %{{x}} {words}<extra></extra>",
        })  # fmt: skip
    x_axis = axis("devices", rangemode="tozero", range=[0, max(totals.values())])
    height = 150 + _PIXELS_PER_METHOD * len(methods)
    return add_legend(build_figure(bars, "", x_axis, _methods_axis(), barmode="stack", bargap=0.25, height=height))


def _methods_axis() -> dict[str, Any]:
    return axis("", type="category", autorange="reversed", showgrid=False)


def _log_seconds(row: Row) -> float:
    return math.log10(max(row["seconds"], 1e-9))


def _cell_text(row: Row) -> str:
    return "too big" if row["verdict"] == "too big" else duration(row["seconds"])


def _hover_text(row: Row) -> str:
    _, _, time, runtime, training, down, up, *work, verdict, fitting = row_cells(row)
    return (
        f"{verdict}: {fitting} devices can take part<br>{time}<br>memory: {runtime} runtime, {training} training<br>"
        f"{down} down, {up} up<br>{', '.join(work)}"
    )


def _legend_patch(colour: str, place: int) -> dict[str, Any]:
    """One entry of the legend below the heat map."""
    return {
        "xref": "paper", "yref": "paper", "x": 0, "xshift": _PIXELS_PER_PATCH * place, "y": 0, "yshift": -28,
        "xanchor": "left", "showarrow": False, "bgcolor": colour, "borderpad": 3,
        "font": {"color": "#14181a", "size": 12},
    }  # fmt: skip
