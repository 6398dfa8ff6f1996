"""The IDX format of MNIST and similar sets: a magic number, the dimensions, then the bytes."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from undergrowth.data.dataset import Dataset
from undergrowth.data.loaders.files import file_error, find_file, find_folder, read_bytes

_UNSIGNED_BYTES = 0x08


def load_idx(
    name: str, path: Path, inside: tuple[str, ...], class_names: tuple[str, ...], mean: float, std: float
) -> Dataset:
    """A data set of the MNIST family from `path`, or from one of the folders `inside` it that other tools create."""
    folder = find_folder(path, inside, ("train-images?idx3-ubyte", "train-images?idx3-ubyte.gz"))
    x, y = _read_part(folder, "train", len(class_names))
    test_x, test_y = _read_part(folder, "t10k", len(class_names))
    fields = _read_writers(folder, len(y))
    return Dataset(name, x, y, test_x, test_y, len(class_names), class_names, fields, (mean,), (std,))


def _read_part(folder: Path, part: str, classes: int) -> tuple[np.ndarray, np.ndarray]:
    image_file = find_file(folder, *_spellings(f"{part}-images", "idx3-ubyte"))
    label_file = find_file(folder, *_spellings(f"{part}-labels", "idx1-ubyte"))
    x, y = read_idx(image_file, dimensions=3), read_idx(label_file, dimensions=1).astype(np.int64)
    if len(x) != len(y):
        raise file_error(label_file, f"it has {len(y)} labels for the {len(x)} images of {image_file.name}")
    bad = np.flatnonzero(y >= classes)
    if bad.size:
        raise file_error(label_file, f"label {bad[0]} is {y[bad[0]]}; labels must be from 0 to {classes - 1}")
    return x[:, None], y


def _spellings(stem: str, kind: str) -> tuple[str, ...]:
    return f"{stem}-{kind}", f"{stem}-{kind}.gz", f"{stem}.{kind}", f"{stem}.{kind}.gz"


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """An array of unsigned bytes, as a view of the content of the file."""
    raw = read_bytes(path)
    header = 4 + 4 * dimensions
    if len(raw) < header:
        raise file_error(path, f"it is truncated: {len(raw)} bytes, and the header alone takes {header}")
    magic, *shape = struct.unpack(f">{1 + dimensions}I", raw[:header])
    expected = _UNSIGNED_BYTES << 8 | dimensions
    if magic != expected:
        raise file_error(path, f"it is not an IDX file of this type: it starts with {magic}, not {expected}")
    body = len(raw) - header
    if body != math.prod(shape):
        raise file_error(path, f"it is truncated or damaged: {body} bytes of data instead of {math.prod(shape)}")
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)


def _read_writers(folder: Path, samples: int) -> dict[str, np.ndarray]:
    path = folder / "train-writers.npy"
    if not path.is_file():
        return {}
    try:
        writers = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise file_error(path, f"it is not a readable .npy file: {error}") from error
    if writers.shape != (samples,):
        raise file_error(path, f"it has shape {writers.shape}; there are {samples} training images")
    return {"writer": writers}
