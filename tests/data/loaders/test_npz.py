"""Any .npz file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from undergrowth.core.errors import InputError
from undergrowth.data import load

X, Y = np.arange(80.0).reshape(40, 2), np.arange(40) % 4


def save(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "mine.npz", **arrays)
    return folder / "mine.npz"


def test_without_test_arrays_a_fraction_is_held_out(tmp_path: Path) -> None:
    path = save(tmp_path, x=X, y=Y, subject=np.arange(40), other=np.zeros(3))
    dataset = load("npz", path)
    assert dataset.name == "mine" and dataset.classes == 4
    assert np.bincount(np.asarray(dataset.test_y)).tolist() == [2, 2, 2, 2]
    assert set(dataset.fields) == {"subject"}
    # Fields follow their samples through the split.
    assert np.array_equal(np.asarray(dataset.fields["subject"]), np.asarray(dataset.x)[:, 0] / 2)
    assert np.array_equal(np.asarray(load("npz", tmp_path).x), np.asarray(dataset.x))
    assert len(load("npz", path, test_share=0.5, seed=3).test_y) == 20


@pytest.mark.parametrize("keys", [("x", "y", "x_test", "y_test"), ("x_train", "y_train", "test_x", "test_y")])
def test_with_test_arrays(keys: tuple[str, ...], tmp_path: Path) -> None:
    arrays = dict(zip(keys, (X, Y[:, None], X[:5], Y[:5].astype(np.uint8)), strict=True))
    dataset = load("npz", save(tmp_path, **arrays, class_names=np.array(["a", "b", "c", "d"])))
    assert len(dataset) == 40 and len(dataset.test_y) == 5 and dataset.class_names == ("a", "b", "c", "d")
    assert dataset.fields == {}


def test_channels_are_moved_to_the_front(tmp_path: Path) -> None:
    grey = load("npz", save(tmp_path, x=np.zeros((40, 8, 9), np.uint8), y=Y))
    assert grey.shape == (1, 8, 9)
    assert load("npz", save(tmp_path, x=np.zeros((40, 8, 9, 3), np.uint8), y=Y)).shape == (3, 8, 9)
    assert load("npz", save(tmp_path, x=np.zeros((40, 3, 8, 9), np.uint8), y=Y)).shape == (3, 8, 9)
    assert load("npz", save(tmp_path, x=np.zeros((40, 128, 6)), y=Y)).shape == (128, 6)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": X}, "mine.npz: it contains no 'y', only x"),
        ({}, "only nothing"),
        ({"x": X, "y": Y[:39]}, "40 samples and y has 39"),
        ({"x": X, "y": Y, "x_test": X}, "only one of x_test and y_test"),
        ({"x": X, "y": Y + 0.5}, "y has .* float64; labels must be"),
        ({"x": X, "y": np.stack([Y, Y], 1)}, r"y has shape \(40, 2\)"),
        ({"x": X, "y": 3}, r"y has shape \(\)"),
        ({"x": 3, "y": Y}, r"x has shape \(\)"),
        ({"x": X, "y": Y - 1}, r"\] is -1; labels must be"),
        ({"x": X * np.nan, "y": Y}, "NaN"),
        ({"x": X[:1], "y": Y[:1]}, "it has one sample; at least two are needed"),
        ({"x": X[:0], "y": Y[:0]}, "x is empty"),
        ({"x": np.array([[{}]] * 40), "y": Y}, "mine.npz: it cannot be read as .npz: .*allow_pickle"),
    ],
)
def test_wrong_arrays_are_refused(arrays: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        load("npz", save(tmp_path, **arrays))


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, x=X, y=Y)
    for options, said in (
        ({"classes": 3}, "is 3; labels must be integers from 0 to 2"),
        ({"classes": "many"}, "classes is 'many'"),
        ({"test_share": 2}, "test_share is 2"),
        ({"seed": "a"}, "seed is 'a'"),
    ):
        with pytest.raises(InputError, match=said):
            load("npz", path, **options)  # type: ignore[arg-type]


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    for content in (b"", b"h", b"x,y\n1,0\n", "höhe;klasse\n".encode(), b"\x80\x04]."):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"table.csv: it is not an .npz file, which numpy.savez"):
            load("npz", path)


@pytest.mark.parametrize("flag", [b"\x63\x00", b"\x0c\x00", b"\x0e\x00"])
def test_a_damaged_compression_method_is_refused(flag: bytes, tmp_path: Path) -> None:
    path = save(tmp_path, x=X, y=Y)
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02")  # of the first array in the directory of the archive
    content[entry + 10 : entry + 12] = flag
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"mine.npz: it cannot be read as .npz: "):
        load("npz", path)


def test_a_bad_sample_is_named_by_its_position_in_the_file(tmp_path: Path) -> None:
    for row in (3, 17, 39):
        x, y = X.copy(), Y.copy()
        x[row, 1] = np.nan
        with pytest.raises(InputError, match=rf"data set 'mine': x\[{row}\] holds NaN"):
            load("npz", save(tmp_path, x=x, y=Y))
        y[row] = -1
        with pytest.raises(InputError, match=rf"data set 'mine': y\[{row}\] is -1"):
            load("npz", save(tmp_path, x=X, y=y))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    whole = save(tmp_path, x=X, y=Y).read_bytes()
    damaged = bytearray(whole)
    damaged[200:260] = bytes(60)
    broken = tmp_path / "broken.npz"
    for content in (whole[:-40], whole[: len(whole) // 2], bytes(damaged)):
        broken.write_bytes(content)
        with pytest.raises(InputError, match=r"broken.npz: it cannot be read"):
            load("npz", broken)
    np.save(tmp_path / "one.npy", X)
    with pytest.raises(InputError, match="single array"):
        load("npz", tmp_path / "one.npy")
    with pytest.raises(InputError, match=r"2 .npz files; name one"):
        load("npz", tmp_path)
