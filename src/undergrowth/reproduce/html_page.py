"""A reproduced table as an HTML page: the same content as the Markdown page, with plots."""

from __future__ import annotations

from collections.abc import Sequence

from undergrowth.report.figures import Figure, add_legend, axis, build_figure, colour, line_style
from undergrowth.report.html import Page
from undergrowth.reproduce.page_content import page_parts
from undergrowth.reproduce.results import CellResult, TableResult


def render_html(result: TableResult, command: str, torch_device: str) -> str:
    """The page of `result`. `command` is the one that made it, `torch_device` its torch device."""
    headline, *parts = page_parts(result, command, torch_device)
    page = Page(headline.title)
    page.section(headline.title, headline.text, level=1)
    page.figures(draw(result))
    for part in (headline._replace(title="", text=""), *parts):
        if part.title:
            page.section(part.title, part.text)
        elif part.text:
            page.text(part.text)
        if part.table:
            page.table(*part.table)
        for line in part.lines:
            page.text(line)
    return page.render()


def draw(result: TableResult) -> list[Figure]:
    """The plots of a table, as its `plot` says."""
    rows = [row for row in result.table.rows if any(each.cell.row == row and each.values for each in result.cells)]
    if result.table.plot.kind != "rounds":
        return [_against_columns(result, rows)] if rows else []
    drawn = []
    for column in result.table.columns:
        lines = [
            _trace([at for at, _ in each.curve], [value for _, value in each.curve], each.cell.row, rows, "lines")
            for each in result.cells
            if each.cell.column == column and each.curve
        ]
        if lines:
            drawn.append(add_legend(build_figure(lines, column, axis("round"), axis("accuracy, %"))))
    return drawn


def _against_columns(result: TableResult, rows: Sequence[str]) -> Figure:
    """Our means with their standard deviations by column, and the published numbers as open circles."""
    cells = {each.cell.place: each for each in result.cells}
    kind = result.table.plot.kind
    traces = []
    for row in rows:
        found = [cells[row, column] for column in result.table.columns if (row, column) in cells]
        ours = [(each, each.ours) for each in found if each.ours]
        columns, means = [each.cell.column for each, _ in ours], [value.mean for _, value in ours]
        trace = _trace(columns, means, row, rows, "lines+markers")
        trace["error_y"] = {"type": "data", "array": [value.spread or 0.0 for _, value in ours], "thickness": 1}
        if kind == "bars":
            trace |= {"type": "bar", "marker": {"color": colour(rows.index(row))}}
        traces.append(trace)
        if kind == "columns" and (published := [each for each in found if each.published]):
            traces.append(_published_trace(published, row, rows))
    x_axis = axis(result.table.plot.x, type="category")
    return add_legend(build_figure(traces, result.table.title, x_axis, axis(result.table.unit), height=420))


def _published_trace(published: Sequence[CellResult], row: str, rows: Sequence[str]) -> Figure:
    numbers = [each.published.mean for each in published if each.published]
    trace = _trace([each.cell.column for each in published], numbers, f"{row}, published", rows, "markers", row)
    return trace | {"marker": {"symbol": "circle-open", "size": 9, "color": colour(rows.index(row))}}


def _trace(x: Sequence[object], y: Sequence[float], name: str, rows: Sequence[str], mode: str, row: str = "") -> Figure:
    place = rows.index(row or name)
    hover = f"{name}<br>%{{x}}: %{{y:.2f}}<extra></extra>"
    return {
        "type": "scatter", "mode": mode, "x": list(x), "y": list(y), "name": name, "line": line_style(place),
        "hovertemplate": hover,
    }  # fmt: skip
