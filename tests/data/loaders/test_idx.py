"""MNIST and Fashion-MNIST from IDX files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from undergrowth.core.errors import InputError
from undergrowth.data import load, partition_dataset

RANDOM = np.random.default_rng(0)
IMAGES = {
    "train": RANDOM.integers(0, 256, (30, 28, 28), np.uint8),
    "t10k": RANDOM.integers(0, 256, (10, 28, 28), np.uint8),
}
LABELS = {part: (np.arange(len(x)) % 10).astype(np.uint8) for part, x in IMAGES.items()}


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def write(folder: Path, packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part in IMAGES:
        for kind, array in (("images-idx3", IMAGES[part]), ("labels-idx1", LABELS[part])):
            content = idx(array)
            name = f"{part}-{kind}-ubyte" + (".gz" if packed else "")
            (folder / name).write_bytes(gzip.compress(content) if packed else content)
    return folder


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_both_sets_compressed_or_not(name: str, packed: bool, tmp_path: Path) -> None:
    dataset = load(name, write(tmp_path, packed))
    assert np.array_equal(dataset.x, IMAGES["train"][:, None])
    assert np.array_equal(dataset.test_y, LABELS["t10k"])
    assert dataset.shape == (1, 28, 28) and len(dataset.class_names) == 10 and not dataset.fields


@pytest.mark.parametrize("inside", ["mnist", "MNIST/raw"])
def test_the_parent_folder_is_accepted(inside: str, tmp_path: Path) -> None:
    write(tmp_path / inside)
    assert len(load("mnist", tmp_path)) == 30


def test_writers_become_a_field(tmp_path: Path) -> None:
    np.save(write(tmp_path) / "train-writers.npy", np.arange(30) // 6)
    population = partition_dataset(load("mnist", tmp_path), "natural:writer", None, 0)
    assert population.groups == ("0", "1", "2", "3", "4")
    np.save(tmp_path / "train-writers.npy", np.arange(7))
    with pytest.raises(InputError, match=r"train-writers.npy: it has shape \(7,\)"):
        load("mnist", tmp_path)
    (tmp_path / "train-writers.npy").write_bytes(b"no array")
    with pytest.raises(InputError, match=r"train-writers.npy: it is not"):
        load("mnist", tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (write(tmp_path) / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(InputError, match=r"contains no t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte.gz"):
        load("mnist", tmp_path)
    with pytest.raises(InputError, match="it is a file and must be a folder"):
        load("mnist", tmp_path / "train-labels-idx1-ubyte")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (idx(IMAGES["train"])[:-1], "truncated or damaged: 23519 bytes of data instead of 23520"),
        (b"\0\0", "2 bytes, and the header"),
        (b"", "0 bytes, and the header"),
        (idx(LABELS["train"]), "it starts with 2049, not 2051"),
        (idx(IMAGES["t10k"]), "30 labels for the 10 images"),
    ],
)
def test_damaged_images_are_refused(content: bytes, said: str, tmp_path: Path) -> None:
    (write(tmp_path) / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(InputError, match=said):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    "content",
    [gzip.compress(idx(IMAGES["train"]))[:-20], b"not packed at all", b"\x1f\x8b\x08\0junkjunkjunk"],
    ids=["truncated", "not packed", "only a header"],  # an archive has a time in it, and names of tests must not
)
def test_damaged_archives_are_refused(content: bytes, tmp_path: Path) -> None:
    (write(tmp_path, packed=True) / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte.gz: it is truncated or not a gzip file"):
        load("mnist", tmp_path)


def test_labels_out_of_range_are_refused(tmp_path: Path) -> None:
    labels = LABELS["train"].copy()
    labels[4] = 77
    (write(tmp_path) / "train-labels-idx1-ubyte").write_bytes(idx(labels))
    with pytest.raises(InputError, match="label 4 is 77; labels must be from 0 to 9"):
        load("mnist", tmp_path)
