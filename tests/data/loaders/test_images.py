"""A folder of images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from undergrowth.core.errors import InputError
from undergrowth.data import load

Image = pytest.importorskip("PIL.Image")


def write(folder: Path, count: int = 5, size: tuple[int, int] = (6, 4)) -> Path:
    """Red cats and green dogs; size is (height, width)."""
    for name, colour in (("cat", (255, 0, 0)), ("dog", (0, 255, 0))):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.new("RGB", (size[1], size[0]), colour).save(folder / name / f"{number}.png")
    return folder


def test_one_folder_per_class(tmp_path: Path) -> None:
    folder = write(tmp_path / "pets")
    (folder / ".cache").mkdir()
    (folder / "cat" / "notes.txt").write_text("not a picture")
    dataset = load("images", folder)
    assert (dataset.name, dataset.class_names, dataset.shape) == ("pets", ("cat", "dog"), (3, 6, 4))
    assert (len(dataset), len(dataset.test_y)) == (8, 2)
    shard = dataset.shard(np.arange(8))
    assert (shard.x[shard.y == 0][:, 0] == 1).all() and (shard.x[shard.y == 1][:, 0] == 0).all()


def test_train_and_test_folders(tmp_path: Path) -> None:
    write(tmp_path / "train")
    write(tmp_path / "test", count=2, size=(12, 8))
    dataset = load("images", tmp_path)
    assert dataset.x.shape == (10, 3, 6, 4) and dataset.test_x.shape == (4, 3, 6, 4)
    (tmp_path / "test" / "dog").rename(tmp_path / "test" / "dogg")
    with pytest.raises(InputError, match="dogg: there is no such class"):
        load("images", tmp_path)


def test_only_a_train_folder_is_split(tmp_path: Path) -> None:
    write(tmp_path / "train")
    assert len(load("images", tmp_path).test_y) == 2


def test_size_and_channels(tmp_path: Path) -> None:
    write(tmp_path)
    assert load("images", tmp_path, size=(8, 9), channels=1).shape == (1, 8, 9)
    assert load("images", tmp_path, size=[3, 5]).shape == (3, 3, 5)
    assert load("images", tmp_path, size=7).shape == (3, 7, 7)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": (0, 3)}, r"size is \(0, 3\)"),
        ({"size": "big"}, "size is 'big'"),
        ({"size": (1, 2, 3)}, r"size is \(1, 2, 3\)"),
        ({"size": 10_000_000}, "10 images of 10000000×10000000 pixels do not fit into memory; choose a smaller size"),
        ({"channels": 2}, "channels is 2"),
        ({"channels": [1]}, r"channels is \[1\]"),
        ({"task": ["regression"]}, r"task \['regression'\]: a folder of images can have"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        load("images", write(tmp_path), **options)


def test_damaged_images_are_refused(tmp_path: Path) -> None:
    good = (write(tmp_path) / "cat" / "1.png").read_bytes()
    for content in (b"", b"hello", good[: len(good) // 2]):
        (tmp_path / "cat" / "1.png").write_bytes(content)
        with pytest.raises(InputError, match=r"1.png: it cannot be read as an image"):
            load("images", tmp_path)


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    with pytest.raises(InputError, match="contains no folder with images"):
        load("images", tmp_path)


def test_without_pillow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match=r"pip install 'undergrowth\[images\]'"):
        load("images", tmp_path)


def test_pixels_of_more_than_a_byte(tmp_path: Path) -> None:
    """Grey of 16 bits keeps its upper byte, as colours of 16 bits do; numbers of no known range are refused."""
    grey = np.arange(24, dtype=np.uint16).reshape(6, 4) * 2560
    for path in write(tmp_path).glob("*/*.png"):
        Image.fromarray(grey).save(path)
    assert load("images", tmp_path).x[0, 0].tolist() == (grey >> 8).tolist()
    other = tmp_path / "cat" / "1.tiff"
    Image.fromarray(grey.astype(np.float32) / 255).save(other)
    assert load("images", tmp_path).x.max() == 230
    for wrong, said in ((grey.astype(np.int32), "0 to 58880"), (grey.astype(np.float32) / 65536, "0 to 0.89")):
        Image.fromarray(wrong).save(other)
        with pytest.raises(InputError, match=f"1.tiff: .* its pixels are numbers from {said}"):
            load("images", tmp_path)


def test_a_palette_with_transparency_gives_no_warning(tmp_path: Path) -> None:
    for path in write(tmp_path).glob("*/*.png"):
        Image.open(path).convert("P").save(path, transparency=bytes(256))
    assert load("images", tmp_path).shape == (3, 6, 4)
