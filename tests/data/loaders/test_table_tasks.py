"""Tables whose label is a number, or several columns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from undergrowth.core import InputError
from undergrowth.data import load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = [f"{n},{n % 7},{n * 0.5 - 3},{n % 2},{int(n > 20)}" for n in range(40)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["a,b,price,warm,late", *rows]))
    return path


def test_a_numeric_label(file: Path) -> None:
    data = load("table", file, label="price", ignore=["warm", "late"], task="regression", standardise=False)
    assert data.task == "regression" and data.classes == 1 and data.class_names == ("price",)
    x, y = (np.concatenate([np.asarray(a), np.asarray(b)]) for a, b in ((data.x, data.test_x), (data.y, data.test_y)))
    assert y.shape == (40,) and np.allclose(y, x[:, 0] * 0.5 - 3)
    scaled = load("table", file, label="price", task="regression", standardise_label=True)
    assert np.asarray(scaled.y).std() == pytest.approx(1, abs=1e-6)


def test_several_label_columns(file: Path) -> None:
    data = load("table", file, label=["warm", "late"], task="multi-label", standardise=False)
    assert data.classes == 2 and data.class_names == ("warm", "late") and data.shape == (3,)
    x, y = np.asarray(data.x), np.asarray(data.y)
    assert (y[:, 0] == x[:, 0] % 2).all() and (y[:, 1] == (x[:, 0] > 20)).all()
    both = load("table", file, label=["price", "warm"], task="regression")
    assert np.asarray(both.y).shape[1] == both.classes == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": ["warm", "late"]}, "several columns are for the tasks regression and multi-label"),
        ({"label": "price", "task": "multi-label"}, "row 2, column 'price': -3 is not 0 or 1"),
        (
            {"label": "price", "task": "next-token"},
            "a table can have the tasks classification, regression, multi-label",
        ),
        ({"label": [], "task": "regression"}, "label [] names no column"),
        ({"label": "price"}, "a label must be a class"),
        ({"label": "warm", "standardise_label": True}, "standardise_label is for the task regression"),
    ],
)
def test_bad_input(file: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        load("table", file, **options)


def test_a_label_always_needs_a_value(tmp_path: Path) -> None:
    path = tmp_path / "holes.csv"
    path.write_text("a,y\n" + "".join(f"{n},{'' if n == 3 else n}\n" for n in range(20)))
    for missing in (None, "mean"):
        with pytest.raises(InputError, match="row 5, column 'y' has no value"):
            load("table", path, label="y", task="regression", missing=missing)
    dropped = load("table", path, label="y", task="regression", missing="drop")
    assert len(dropped.y) + len(dropped.test_y) == 19
