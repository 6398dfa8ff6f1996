"""Fashion-MNIST: 70 000 images of clothes, in the published IDX files."""

from __future__ import annotations

from pathlib import Path

from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.idx import load_idx

_CLASSES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def load(path: Path) -> Dataset:
    """28×28 grey images."""
    inside = ("fashion-mnist", "FashionMNIST/raw", "raw")
    return load_idx("fashion-mnist", path, inside, _CLASSES, (0.2860,), (0.3530,))


ENTRY = DatasetEntry(
    name="fashion-mnist",
    title="Fashion-MNIST, Zalando's article images, 28×28 pixels",
    shape=(1, 28, 28),
    classes=10,
    train=60_000,
    test=10_000,
    megabytes=55,
    licence="MIT (Zalando SE)",
    how_to_get=(
        "put train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and "
        "t10k-labels-idx1-ubyte.gz from https://github.com/zalandoresearch/fashion-mnist there (unpacked or not)"
    ),
    layout="{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]",
    example='load("fashion-mnist", "~/data/fashion-mnist")',
    loader=load,
)
