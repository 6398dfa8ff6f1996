"""CIFAR-100: 60 000 colour photographs of a hundred classes, in the binary or the Python version."""

from __future__ import annotations

from pathlib import Path

from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.cifar import read_binary, read_names, read_python
from undergrowth.data.loaders.files import find_file, find_folder, read_lines

_LIMITS = (20, 100)  # coarse labels come first


def load(path: Path) -> Dataset:
    """32×32 colour images with the fine labels; the coarse labels are the field `superclass`."""
    folder = find_folder(path, ("cifar-100-binary", "cifar-100-python"), ("train.bin", "train"))
    if (folder / "train.bin").is_file():
        x, coarse, y = read_binary(folder / "train.bin", _LIMITS)
        test_x, _, test_y = read_binary(find_file(folder, "test.bin"), _LIMITS)
        class_names = read_lines(folder / "fine_label_names.txt")
    else:
        keys = ("coarse_labels", "fine_labels")
        x, coarse, y = read_python(find_file(folder, "train"), keys, _LIMITS)
        test_x, _, test_y = read_python(find_file(folder, "test"), keys, _LIMITS)
        class_names = read_names(folder / "meta", "fine_label_names")
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    return Dataset("cifar100", x, y, test_x, test_y, 100, class_names, {"superclass": coarse}, mean, std)


ENTRY = DatasetEntry(
    name="cifar100",
    title="CIFAR-100 colour photographs, 32×32 pixels, fine labels",
    shape=(3, 32, 32),
    classes=100,
    train=50_000,
    test=10_000,
    megabytes=184,
    licence="none stated; cite Krizhevsky 2009",
    how_to_get=(
        "unpack cifar-100-binary.tar.gz or cifar-100-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html "
        "there, so that it contains cifar-100-binary/ or cifar-100-python/"
    ),
    layout="[cifar-100-binary/]{train,test}.bin or [cifar-100-python/]{train,test}",
    example='load("cifar100", "~/data/cifar100")',
    loader=load,
    fields=("superclass",),
)
