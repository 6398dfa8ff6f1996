"""Hugging Face data sets: images, texts and numbers, as a folder and as an object."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import undergrowth as ug
from undergrowth.core import InputError
from undergrowth.data import load

LABELS = ["yes", "no"] * 10


@pytest.fixture
def library():
    return pytest.importorskip("datasets")


def test_numbers_from_a_folder_are_those_of_the_object(library, tmp_path):
    rows = {"a": [float(place) for place in range(20)], "b": [[place, 1] for place in range(20)], "label": LABELS}
    made = library.Dataset.from_dict({**rows, "user": [f"u{place % 4}" for place in range(20)]})
    made.save_to_disk(str(tmp_path / "saved"))
    one = load("hf", made, group="user", input=["a", "b"])
    other = load("hf", tmp_path / "saved", group="user", input=["a", "b"])
    assert one.class_names == ("no", "yes") and one.shape == (3,) and len(one) == 16
    assert np.array_equal(one.x, other.x) and np.array_equal(one.y, other.y)
    assert {int(x[0]) for x in [*one.x, *one.test_x]} == set(range(20))
    result = ug.run(
        data=made, data_options={"group": "user", "input": ["a", "b"]}, model="logistic", rounds=1, out=tmp_path / "r"
    )
    assert result.summary["clients"] == 4


def test_texts_become_tokens_and_a_test_part_is_taken(library):
    part = library.Dataset.from_dict({"text": ["good day", "bad day"] * 10, "label": LABELS})
    data = load("hf", library.DatasetDict(train=part, test=part.select(range(4))), length=3)
    assert (
        data.x.shape == (20, 3)
        and data.test_x.shape == (4, 3)
        and data.notes == ("the input is text and the label label",)
    )
    assert np.array_equal(data.x[0], data.test_x[0]) and not np.array_equal(data.x[0], data.x[1])


def test_images(library):
    pytest.importorskip("PIL")
    pixels = [np.full((4, 5, 3), place, dtype=np.uint8) for place in range(20)]
    features = library.Features({"image": library.Image(), "label": library.ClassLabel(names=["no", "yes"])})
    made = library.Dataset.from_dict({"image": pixels, "label": [0, 1] * 10}, features=features)
    data = load("hf", made)
    assert data.x.shape == (16, 3, 4, 5) and data.x.dtype == np.uint8 and data.class_names == ("no", "yes")
    assert load("hf", made, size=2, channels=1).shape == (1, 2, 2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"label": "lable"}, "label is 'lable'; did you mean 'label'"),
        ({"input": "txt"}, "input is 'txt'; did you mean 'text'"),
        ({"input": ["text", "a"]}, "it must be one column of images or of texts, or columns of numbers"),
    ],
)
def test_wrong_options_are_refused(library, options, sentence):
    rows = {"text": ["good day", "bad day"] * 10, "a": [1.0] * 20, "label": LABELS}
    with pytest.raises(InputError, match=sentence):
        load("hf", library.Dataset.from_dict(rows), **options)


def test_without_the_library_the_command_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "dataset_info.json").write_text("{}")
    with pytest.raises(InputError, match=r"pip install 'undergrowth\[hf\]'"):
        load("hf", tmp_path)
