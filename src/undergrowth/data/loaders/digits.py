"""Digits: 1 797 small handwritten digits that come with scikit-learn, so a first run needs no download."""

from __future__ import annotations

import gzip
from functools import cache

import numpy as np
import numpy.typing as npt

from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.files import scikit_learn_file
from undergrowth.data.split import stratified_split

MEAN = 0.3053  # of all pixels after scaling
FILE = "datasets/data/digits.csv.gz"  # in scikit-learn: 64 pixels from 0 to 16 and the label in every row


def load() -> Dataset:
    """8×8 grey images, scaled to [0, 1] and centred; a fixed fifth of every class is the central test set."""
    rows = _read_rows()
    x = (rows[:, :-1].reshape(-1, 1, 8, 8) / 16 - MEAN).astype(np.float32)
    y = rows[:, -1].astype(np.int64)
    train, test = stratified_split(y, fraction=0.2, seed=0)
    return Dataset("digits", x[train], y[train], x[test], y[test], 10, tuple("0123456789"))


@cache  # parsing takes a fifth of a small run
def _read_rows() -> npt.NDArray[np.float64]:
    with gzip.open(scikit_learn_file("digits", FILE)) as lines:
        return np.loadtxt(lines, delimiter=",")


ENTRY = DatasetEntry(
    name="digits",
    title="Handwritten digits of the UCI repository, 8×8 pixels (scikit-learn's copy)",
    shape=(1, 8, 8),
    classes=10,
    train=1438,
    test=359,
    megabytes=0.5,
    licence="CC BY 4.0 (UCI, Alpaydin and Kaynak 1998)",
    how_to_get="nothing to do: scikit-learn contains it",
    layout="no files",
    example='load("digits")',
    loader=load,
    embedded=True,
)
