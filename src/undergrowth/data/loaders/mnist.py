"""MNIST: 70 000 handwritten digits, in the published IDX files."""

from __future__ import annotations

from pathlib import Path

from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.idx import load_idx


def load(path: Path) -> Dataset:
    """28×28 grey images. The file train-writers.npy (one id per image), if present, is the field `writer`."""
    return load_idx("mnist", path, ("mnist", "MNIST/raw", "raw"), tuple("0123456789"), (0.1307,), (0.3081,))


ENTRY = DatasetEntry(
    name="mnist",
    title="MNIST handwritten digits, 28×28 pixels",
    shape=(1, 28, 28),
    classes=10,
    train=60_000,
    test=10_000,
    megabytes=55,
    licence="CC BY-SA 3.0 (LeCun, Cortes and Burges)",
    how_to_get=(
        "put train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and "
        "t10k-labels-idx1-ubyte.gz from https://ossci-datasets.s3.amazonaws.com/mnist/ there (unpacked or not)"
    ),
    layout="{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz], optionally train-writers.npy",
    example='load("mnist", "~/data/mnist")',
    loader=load,
    fields=("writer",),
)
