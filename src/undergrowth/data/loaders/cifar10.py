"""CIFAR-10: 60 000 colour photographs of ten classes, in the binary or the Python version."""

from __future__ import annotations

from pathlib import Path

from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.cifar import batch_files, concatenate, read_binary, read_names, read_python
from undergrowth.data.loaders.files import find_file, find_folder, read_lines

_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def load(path: Path) -> Dataset:
    """32×32 colour images; `path` is the folder with the batches or its parent."""
    folder = find_folder(path, ("cifar-10-batches-bin", "cifar-10-batches-py"), ("data_batch_?.bin", "data_batch_?"))
    if any(folder.glob("data_batch_?.bin")):
        x, y = concatenate([read_binary(file, (10,)) for file in batch_files(folder, ".bin")])
        test_x, test_y = read_binary(find_file(folder, "test_batch.bin"), (10,))
        class_names = read_lines(folder / "batches.meta.txt")
    else:
        x, y = concatenate([read_python(file, ("labels",), (10,)) for file in batch_files(folder, "")])
        test_x, test_y = read_python(find_file(folder, "test_batch"), ("labels",), (10,))
        class_names = read_names(folder / "batches.meta", "label_names")
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return Dataset("cifar10", x, y, test_x, test_y, 10, class_names or _CLASSES, {}, mean, std)


ENTRY = DatasetEntry(
    name="cifar10",
    title="CIFAR-10 colour photographs, 32×32 pixels",
    shape=(3, 32, 32),
    classes=10,
    train=50_000,
    test=10_000,
    megabytes=184,
    licence="none stated; cite Krizhevsky 2009",
    how_to_get=(
        "unpack cifar-10-binary.tar.gz or cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html "
        "there, so that it contains cifar-10-batches-bin/ or cifar-10-batches-py/"
    ),
    layout=(
        "[cifar-10-batches-bin/]{data_batch_1..5,test_batch}.bin or [cifar-10-batches-py/]{data_batch_1..5,test_batch}"
    ),
    example='load("cifar10", "~/data/cifar10")',
    loader=load,
)
