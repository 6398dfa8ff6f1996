"""Diabetes: a small regression that comes with scikit-learn, so a first run needs no download."""

from __future__ import annotations

import gzip

import numpy as np

from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.files import scikit_learn_file
from undergrowth.data.loaders.targets import split_samples

FEATURES, TARGET = "datasets/data/diabetes_data_raw.csv.gz", "datasets/data/diabetes_target.csv.gz"


def load() -> Dataset:
    """Ten measurements of a patient, and how far the disease has progressed a year later.

    A fixed fifth of the patients is the central test set. Measurements and labels have mean 0 and deviation 1 over the
    others, so errors are in units of that deviation.
    """
    parts = []
    for file in (FEATURES, TARGET):
        with gzip.open(scikit_learn_file("diabetes", file)) as lines:
            parts.append(np.loadtxt(lines))
    train, test = split_samples(parts[1], "regression", fraction=0.2, seed=0)
    x, y = (((part - part[train].mean(0)) / part[train].std(0)).astype(np.float32) for part in parts)
    return Dataset("diabetes", x[train], y[train], x[test], y[test], 1, ("progression",), task="regression")


ENTRY = DatasetEntry(
    name="diabetes",
    title="Progression of diabetes from ten measurements, a regression (scikit-learn's copy)",
    shape=(10,),
    classes=1,
    train=352,
    test=90,
    megabytes=0.1,
    licence="none stated; cite Efron et al., Least Angle Regression, 2004",
    how_to_get="nothing to do: scikit-learn contains it",
    layout="no files",
    example='load("diabetes")',
    loader=load,
    embedded=True,
    task="regression",
)
