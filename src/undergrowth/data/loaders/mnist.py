"""MNIST and Fashion-MNIST: 70 000 handwritten digits or images of clothes, in the published IDX files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.idx import load_idx

_CLOTHES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def load_mnist(path: Path) -> Dataset:
    """28×28 grey images. The file train-writers.npy (one id per image), if present, is the field `writer`."""
    return load_idx("mnist", path, ("mnist", "MNIST/raw", "raw"), tuple("0123456789"), 0.1307, 0.3081)


def load_fashion_mnist(path: Path) -> Dataset:
    """28×28 grey images."""
    inside = ("fashion-mnist", "FashionMNIST/raw", "raw")
    return load_idx("fashion-mnist", path, inside, _CLOTHES, 0.2860, 0.3530)


MNIST = DatasetEntry(
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
        "t10k-labels-idx1-ubyte.gz from https://ossci-datasets.s3.amazonaws.com/mnist/ there (unpacked or not); for "
        "partition natural also train-writers.npy, one writer id per training image, which are column 2 of QMNIST's "
        "qmnist-train-labels-idx2-int.gz (https://github.com/facebookresearch/qmnist)"
    ),
    layout="{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz], optionally train-writers.npy",
    example='load("mnist", "~/data/mnist")',
    loader=load_mnist,
    fields=("writer",),
)

FASHION_MNIST = replace(
    MNIST,
    name="fashion-mnist",
    title="Fashion-MNIST, Zalando's article images, 28×28 pixels",
    licence="MIT (Zalando SE)",
    how_to_get=(
        "put train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and "
        "t10k-labels-idx1-ubyte.gz from https://github.com/zalandoresearch/fashion-mnist there (unpacked or not)"
    ),
    layout="{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]",
    example='load("fashion-mnist", "~/data/fashion-mnist")',
    loader=load_fashion_mnist,
    fields=(),
)
