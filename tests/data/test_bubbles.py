"""The bubble plot."""

from __future__ import annotations

import numpy as np
import pytest

from undergrowth.core.errors import InputError
from undergrowth.data import draw_bubbles


def device_names(count: int) -> list[str]:
    return [f"device-{number:03d}" for number in range(count)]


def test_one_bubble_per_device_and_class() -> None:
    figure = draw_bubbles(np.array([[4, 0], [1, 9], [0, 0]]), device_names(3), ("cat", "dog"))
    (trace,) = figure.data
    assert list(zip(trace.x, trace.y, trace.marker.size, strict=True)) == [(0, 0, 4), (1, 0, 1), (1, 1, 9)]
    assert trace.marker.sizemode == "area"
    assert figure.layout.title.text == "14 training samples on 3 devices, 1 without samples"
    assert list(figure.layout.yaxis.ticktext) == ["cat", "dog"]
    figure.to_json()


@pytest.mark.parametrize(("devices", "classes"), [(1, 1), (20, 10), (200, 100), (5000, 10)])
def test_large_populations_are_reduced(devices: int, classes: int) -> None:
    figure = draw_bubbles(np.ones((devices, classes), dtype=int), device_names(devices))
    (trace,) = figure.data
    assert len(trace.x) <= 200 * classes
    assert len(figure.layout.xaxis.tickvals) <= 25
    assert ("200 shown" in figure.layout.title.text) == (devices > 200)


def test_an_empty_table_can_be_drawn() -> None:
    assert len(draw_bubbles(np.zeros((3, 2), dtype=int), device_names(3)).data[0].x) == 0


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="devices × classes"):
        draw_bubbles(np.ones((3, 2)), device_names(2))
    with pytest.raises(InputError, match="1 names for 2 classes"):
        draw_bubbles(np.ones((3, 2)), device_names(3), ("a",))
