"""Regression, multi-label and next-token from .npz files, Hugging Face data sets and folders of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import undergrowth as ug
from undergrowth.core import InputError
from undergrowth.data import load

X = np.arange(120.0).reshape(40, 3)
TOKENS = (np.arange(40)[:, None] + np.arange(6)) % 7


def save(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "mine.npz", **arrays)
    return folder / "mine.npz"


def test_a_regression_in_an_npz_file(tmp_path: Path) -> None:
    one = load("npz", save(tmp_path, x=X, y=X[:, 0] / 2, user=np.arange(40)), task="regression")
    assert (one.task, one.classes, one.y.shape, one.test_y.shape) == ("regression", 1, (30,), (10,))
    assert np.array_equal(one.y, one.x[:, 0] / 2) and set(one.fields) == {"user"}
    two = load("npz", save(tmp_path, x=X, y=X[:, :2], x_test=X[:5], y_test=X[:5, :2]), task="regression")
    assert two.classes == 2 and two.y.shape == (40, 2) and two.test_y.shape == (5, 2)


def test_labels_of_0_and_1_in_an_npz_file(tmp_path: Path) -> None:
    marks = np.stack([X[:, 0] > 30, X[:, 0] > 60], 1)
    data = load("npz", save(tmp_path, x=X, y=marks, class_names=np.array(["warm", "hot"])), task="multi-label")
    assert data.classes == 2 and data.class_names == ("warm", "hot")
    assert np.array_equal(data.y, np.stack([data.x[:, 0] > 30, data.x[:, 0] > 60], 1))


@pytest.mark.parametrize(
    ("task", "x", "y", "said"),
    [
        ("regression", X[:0], X[:0, 0], "x is empty"),
        ("next-token", X, X[:, 0].astype(str), "y"),
        ("next-token", X.astype("datetime64[s]"), None, "needs rows of tokens"),
    ],
)
def test_arrays_that_do_not_fit_the_task_are_refused(task: str, x: Any, y: Any, said: str, tmp_path: Path) -> None:
    arrays = {"x": x} if y is None else {"x": x, "y": y}
    with pytest.raises(InputError, match=said):
        load("npz", save(tmp_path, **arrays), task=task)


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize <= 8, reason="a longdouble is a float64 here")
def test_numbers_that_torch_does_not_have_become_float64(tmp_path: Path) -> None:
    data = load("npz", save(tmp_path, x=X.astype(np.longdouble), y=np.arange(40) % 2))
    assert data.shard(np.arange(4)).x.shape == (4, 3)


@pytest.mark.parametrize("dtype", [np.int16, np.uint8])  # bytes are tokens here, not pixels
def test_rows_of_tokens_in_an_npz_file(dtype: Any, tmp_path: Path) -> None:
    data = load("npz", save(tmp_path, x=TOKENS.astype(dtype)), task="next-token")
    assert data.classes == 7 and np.array_equal(data.y[:, :-1], data.x[:, 1:]) and (data.y[:, -1] == -1).all()
    given = load("npz", save(tmp_path, x=TOKENS.astype(dtype), y=(TOKENS + 3) % 9), task="next-token")
    assert given.classes == 9 and np.array_equal(given.y, (np.asarray(given.x) + 3) % 9)


@pytest.mark.parametrize(
    ("arrays", "task", "said"),
    [
        ({"x": X, "y": X[:, 0] * np.nan}, "regression", r"y\[0\] is nan; every label must be finite"),
        ({"x": X, "y": X[:, :2]}, "multi-label", r"y\[0, 1\] is 1.0|y\[\d+, \d\] is .*must be 0 or 1"),
        ({"x": X, "y": X[:, None]}, "regression", r"y has shape \(40, 1, 3\); the task regression needs"),
        ({"x": X}, "next-token", r"x has shape \(40, 3\) and type float64; without y, .* needs rows of tokens"),
        ({"x": TOKENS, "y": TOKENS[:, :2]}, "next-token", r"a token for each of the 6 positions"),
        ({"x": X, "y": X[:, 0]}, "ranking", r"an .npz file can have the tasks classification, regression"),
    ],
)
def test_labels_that_do_not_fit_the_task_are_refused(
    arrays: dict[str, Any], task: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        load("npz", save(tmp_path, **arrays), task=task)


def test_a_run_reads_the_labels_as_its_task_says(tmp_path: Path) -> None:
    path = save(tmp_path, x=TOKENS)
    settings = {"path": path, "clients": 2, "partition": "iid", "rounds": 1, "out": tmp_path, "progress": False}
    result = ug.run(data="npz", task="next-token", model="lstm", model_options={"hidden": 4}, **settings)
    assert list(result.metrics) == ["perplexity", "accuracy"]


def test_the_tasks_of_a_hugging_face_data_set(tmp_path: Path) -> None:
    library = pytest.importorskip("datasets")
    numbers = {"x": X.tolist(), "price": X[:, 0].tolist(), "both": X[:, :2].tolist()}
    kinds = library.Sequence(library.ClassLabel(names=["sad", "glad", "calm"]))
    made = library.Dataset.from_dict({**numbers, "moods": [[place % 3, 1] for place in range(40)]})
    made = made.cast_column("moods", kinds)
    one = load("hf", made, input="x", label="price", task="regression")
    assert one.classes == 1 and np.array_equal(one.y, one.x[:, 0]) and len(one.test_y) == 10
    assert load("hf", made, input="x", label=["price", "both"], task="regression").classes == 3
    many = load("hf", made, input="x", label="moods", task="multi-label")
    place = (many.x[:, 0] / 3).astype(int)
    assert many.class_names == ("sad", "glad", "calm")
    assert np.array_equal(many.y, np.eye(3)[place % 3] + np.eye(3)[1] * (place % 3 != 1)[:, None])
    with pytest.raises(InputError, match=r"y\[\d+, 0\] is .* must be 0 or 1"):
        load("hf", made, input="x", label="both", task="multi-label")
    with pytest.raises(InputError, match=r"label \['price', 'both'\]: name one column"):
        load("hf", made, input="x", label=["price", "both"])
    run = {"task": "regression", "model": "mlp", "clients": 2, "rounds": 1, "lr": 1e-4, "progress": False}
    result = ug.run(data=made, data_options={"input": "x", "label": "price"}, out=tmp_path, **run)
    assert "r2" in result.metrics


def test_texts_and_tokens_of_a_hugging_face_data_set_predict_what_follows() -> None:
    library = pytest.importorskip("datasets")
    made = library.Dataset.from_dict({"text": ["a b c", "a b", "b c a b"] * 5, "ids": [[3, 1, 2]] * 15})
    words = load("hf", made, input="text", length=4, task="next-token")
    assert words.classes == 5 and words.task == "next-token"
    row = next(place for place, x in enumerate(words.x) if x.tolist() == [0, 0, 3, 2])  # padding, a, b
    assert words.y[row].tolist() == [-1, 3, 2, -1]
    tokens = load("hf", made, input="ids", task="next-token")
    assert tokens.classes == 4 and tokens.y[0].tolist() == [1, 2, -1]
    with pytest.raises(InputError, match="the task next-token has none"):
        load("hf", made, input="ids", label="text", task="next-token")


def write_images(folder: Path, rows: str) -> None:
    image = pytest.importorskip("PIL.Image")
    folder.mkdir(parents=True)
    for place in range(10):
        image.new("L", (4, 4), 20 * place).save(folder / f"{place}.png")
    (folder / "metadata.csv").write_text(rows, encoding="utf-8")


def test_numbers_to_predict_beside_images(tmp_path: Path) -> None:
    rows = "file_name,age,tall,old\n" + "".join(f"{place}.png,{place},{place % 2},0\n" for place in range(10))
    write_images(tmp_path / "faces", rows)
    ages = load("images", tmp_path / "faces", channels=1, label="age", task="regression")
    assert ages.classes == 1 and ages.class_names == ("age",) and len(ages) + len(ages.test_y) == 10
    assert np.array_equal(ages.x[:, 0, 0, 0], 20 * ages.y)
    write_images(tmp_path / "split" / "train", rows)
    write_images(tmp_path / "split" / "test", rows)
    marks = load("images", tmp_path / "split", channels=1, label=["tall", "old"], task="multi-label")
    assert len(marks) == len(marks.test_y) == 10 and marks.y[:2].tolist() == [[0, 0], [1, 0]]
    with pytest.raises(InputError, match=r"metadata.csv: label: it has no column 'size' to predict"):
        load("images", tmp_path / "faces", label="size", task="regression")
    with pytest.raises(InputError, match=r"contains no metadata.csv with a column file_name"):
        load("images", tmp_path, task="regression")
    with pytest.raises(InputError, match=r"a folder of images can have the tasks classification, regression"):
        load("images", tmp_path / "faces", task="next-token")
    (tmp_path / "faces" / "metadata.csv").write_text("file_name,age\n0.png,\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"row 2, column 'age' has no value"):
        load("images", tmp_path / "faces", task="regression")
