"""FEMNIST: handwritten characters by 3 550 writers, in the format of LEAF's scripts."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import numpy as np

from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.leaf import load_leaf

_CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)


def load(path: Path) -> Dataset:
    """28×28 grey images in [0, 1], where 1 is white paper; the field is `writer`."""
    return load_leaf("femnist", path, _convert, _CLASSES, "writer")


def _convert(x: list[Any], y: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    pixels, labels = np.asarray(x, dtype=np.float32), np.asarray(y)
    if pixels.ndim != 2 or pixels.shape[1] != 28 * 28:
        raise ValueError(f"its inputs have shape {pixels.shape}; each must be 784 numbers")
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= len(_CLASSES):
        raise ValueError(f"its labels must be integers from 0 to {len(_CLASSES) - 1}")
    return pixels.reshape(-1, 1, 28, 28), labels.astype(np.int64)


ENTRY = DatasetEntry(
    name="femnist",
    title="FEMNIST (LEAF), handwritten characters by writer, 28×28 pixels",
    shape=(1, 28, 28),
    classes=62,
    train=724_737,
    test=80_526,
    megabytes=2525,
    licence="public domain (NIST Special Database 19); LEAF's scripts are BSD-2",
    how_to_get=(
        "run LEAF's data/femnist/preprocess.sh -s niid --sf 1.0 -k 0 -t sample "
        "(https://github.com/TalwalkarLab/leaf) and put its folders data/train and data/test there"
    ),
    layout="train/*.json and test/*.json with users, user_data: {user: {x, y}}",
    example='load("femnist", "~/data/femnist")',
    loader=load,
    fields=("writer",),
)
