"""The images of figures: every number is where the axes say, and nothing is left out but what is not finite."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from tests.reproduce.example_table import example_table
from tests.reproduce.test_pages import made_up
from undergrowth.report.figures import Figure, axis, build_figure
from undergrowth.reproduce.html_page import draw
from undergrowth.reproduce.svg_plot import BOTTOM, LEFT, PLOT_HEIGHT, RIGHT, TOP, WIDTH, render_svg

SVG = "{http://www.w3.org/2000/svg}"
BLUE, RED = {"color": "#0000ff", "dash": "solid"}, {"color": "#ff0000", "dash": "dash"}


def trace(x: list, y: list, name: str = "a", line: dict = BLUE, mode: str = "lines", **more: object) -> Figure:
    return {"type": "scatter", "mode": mode, "x": x, "y": y, "name": name, "line": line, **more}


def figure(traces: list[Figure], **x_axis: object) -> Figure:
    return build_figure(traces, "a title", axis("below", **x_axis), axis("beside"))


def elements(image: str, kind: str, **attributes: str) -> list[ElementTree.Element]:
    found = ElementTree.fromstring(image).iter(f"{SVG}{kind}")
    return [each for each in found if all(each.get(name) == value for name, value in attributes.items())]


def value_at(image: str, y: float) -> float:
    """The value at a height, by two labels of the value axis."""
    labels = [
        (float(each.get("y", 0)) - 4, float(each.text or 0))
        for each in elements(image, "text", **{"text-anchor": "end"})
    ]
    (first, low), (last, high) = labels[0], labels[-1]
    return low + (y - first) / (last - first) * (high - low)


def test_a_line_passes_through_its_values() -> None:
    image = render_svg(figure([trace([2, 4, 12], [10.0, 30.0, 20.0]), trace([2, 12], [12.0, 14.0], "b", RED)]))
    blue, red = (
        [each for each in elements(image, "path", stroke=colour) if "L" in each.get("d", "")]
        for colour in ("#0000ff", "#ff0000")
    )
    points = [tuple(map(float, each.split())) for each in re.split("[ML]", blue[0].get("d", ""))[1:]]
    assert [value_at(image, y) for _, y in points] == pytest.approx([10, 30, 20], abs=0.1)
    width = WIDTH - LEFT - RIGHT
    assert [x for x, _ in points] == pytest.approx([LEFT, LEFT + width / 5, LEFT + width], abs=0.1)
    assert red[0].get("stroke-dasharray") and not blue[0].get("stroke-dasharray")
    texts = [each.text for each in elements(image, "text")]
    assert {"a", "b", "a title", "below", "beside", "4", "12"} <= set(texts)


def test_columns_have_equal_distances_deviations_and_open_circles_for_published_numbers() -> None:
    open_circle = {"marker": {"symbol": "circle-open", "color": "#0000ff"}}
    ours = trace(["0.1", "100"], [5.0, 7.0], mode="lines+markers", error_y={"array": [1.0, 0.0]})
    image = render_svg(figure([ours, trace(["1"], [9.0], "published", mode="markers", **open_circle)], type="category"))
    dots = [(float(each.get("cx", 0)), float(each.get("cy", 0))) for each in elements(image, "circle", fill="#0000ff")]
    assert [value_at(image, y) for _, y in dots] == pytest.approx([5, 7], abs=0.05)
    circle = elements(image, "circle", fill="none")[0]
    assert value_at(image, float(circle.get("cy", 0))) == pytest.approx(9, abs=0.05)
    third = (WIDTH - LEFT - RIGHT) / 3
    assert [dots[0][0], dots[1][0], float(circle.get("cx", 0))] == pytest.approx(
        [LEFT + third / 2, LEFT + 1.5 * third, LEFT + 2.5 * third], abs=0.1
    )  # in the order in which the traces name them
    (error,) = (each for each in elements(image, "path") if re.fullmatch(r"M[\d. ]+V[\d.]+", each.get("d", "")))
    ends = [float(each) for each in re.fullmatch(r"M[\d.]+ ([\d.]+)V([\d.]+)", error.get("d", "")).groups()]  # type: ignore[union-attr]
    assert sorted(value_at(image, y) for y in ends) == pytest.approx([4, 6], abs=0.05)


def test_bars_begin_at_zero_and_stand_side_by_side() -> None:
    bars = [trace(["x", "y"], [4.0, 8.0], name, line) | {"type": "bar"} for name, line in (("a", BLUE), ("b", RED))]
    image = render_svg(figure(bars, type="category"))
    boxes = [
        each for each in elements(image, "rect") if float(each.get("y", TOP + PLOT_HEIGHT + BOTTOM)) < TOP + PLOT_HEIGHT
    ]
    assert len(boxes) == 4
    tops = [float(each.get("y", 0)) for each in boxes]
    assert [value_at(image, y) for y in tops] == pytest.approx([4, 8, 4, 8], abs=0.05)
    assert all(
        float(each.get("y", 0)) + float(each.get("height", 0)) == pytest.approx(TOP + PLOT_HEIGHT, abs=0.2)
        for each in boxes
    )
    left, wide = float(boxes[0].get("x", 0)), float(boxes[0].get("width", 0))
    assert float(boxes[2].get("x", 0)) == pytest.approx(left + wide, abs=0.2)


def test_values_that_are_not_finite_are_left_out_and_names_are_escaped() -> None:
    image = render_svg(
        figure([trace([1, 2, 3], [1.0, math.nan, 3.0], "a < b & c"), trace([1], [math.inf], "none", RED)])
    )
    assert "nan" not in image and "inf" not in image
    assert "a < b & c" in [each.text for each in elements(image, "text")]
    assert render_svg(figure([trace([], [])], type="category"))
    assert render_svg(figure([trace([7], [5.0])]))


@pytest.mark.parametrize("kind", ["rounds", "columns", "bars"])
def test_every_plot_of_a_table_can_be_an_image(kind: str) -> None:
    for each in draw(made_up(example_table(tables=["figure-9.3"], plot={"kind": kind, "x": "data"}))):
        texts = [text.text for text in elements(render_svg(each), "text")]
        assert {"FedAvg", "FedProx, pretrained"} <= set(texts)
