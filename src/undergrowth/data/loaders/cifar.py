"""CIFAR-10 and CIFAR-100: 60 000 colour photographs of ten or a hundred classes.

Both are published in two formats: records of label bytes and pixels (binary), and pickles (Python).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.files import MissingFilesError, file_error, find_file, find_folder, read_bytes, read_lines
from undergrowth.data.loaders.plain_pickle import read_plain_pickle

_PIXELS = 3 * 32 * 32
_CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100_LIMITS = (20, 100)  # coarse labels come first


def load_cifar10(path: Path) -> Dataset:
    """32×32 colour images; `path` is the folder with the batches or its parent."""
    folder = find_folder(path, ("cifar-10-batches-bin", "cifar-10-batches-py"), ("data_batch_?.bin", "data_batch_?"))
    if any(folder.glob("data_batch_?.bin")):
        x, y = _concatenate([_read_binary(file, (10,)) for file in _batch_files(folder, ".bin")])
        test_x, test_y = _read_binary(find_file(folder, "test_batch.bin"), (10,))
        class_names = read_lines(folder / "batches.meta.txt")
    else:
        x, y = _concatenate([_read_python(file, ("labels",), (10,)) for file in _batch_files(folder, "")])
        test_x, test_y = _read_python(find_file(folder, "test_batch"), ("labels",), (10,))
        class_names = _read_names(folder / "batches.meta", "label_names")
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return Dataset("cifar10", x, y, test_x, test_y, 10, class_names or _CIFAR10_CLASSES, {}, mean, std)


def load_cifar100(path: Path) -> Dataset:
    """32×32 colour images with the fine labels; the coarse labels are the field `superclass`."""
    folder = find_folder(path, ("cifar-100-binary", "cifar-100-python"), ("train.bin", "train"))
    if (folder / "train.bin").is_file():
        x, coarse, y = _read_binary(folder / "train.bin", _CIFAR100_LIMITS)
        test_x, _, test_y = _read_binary(find_file(folder, "test.bin"), _CIFAR100_LIMITS)
        class_names = read_lines(folder / "fine_label_names.txt")
    else:
        keys = ("coarse_labels", "fine_labels")
        x, coarse, y = _read_python(find_file(folder, "train"), keys, _CIFAR100_LIMITS)
        test_x, _, test_y = _read_python(find_file(folder, "test"), keys, _CIFAR100_LIMITS)
        class_names = _read_names(folder / "meta", "fine_label_names")
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    return Dataset("cifar100", x, y, test_x, test_y, 100, class_names, {"superclass": coarse}, mean, std)


def _read_binary(path: Path, limits: Sequence[int]) -> tuple[np.ndarray, ...]:
    """The images, and one int64 array per label byte of a record; `limits` are the numbers of classes."""
    raw = np.frombuffer(read_bytes(path), dtype=np.uint8)
    width = len(limits) + _PIXELS
    if raw.size == 0 or raw.size % width:
        raise file_error(path, f"it is truncated or damaged: {raw.size} bytes is not a multiple of {width}")
    records = raw.reshape(-1, width)
    labels = [records[:, column].astype(np.int64) for column in range(len(limits))]
    for values, limit in zip(labels, limits, strict=True):
        _check_labels(path, values, limit)
    return records[:, len(limits) :].reshape(-1, 3, 32, 32), *labels


def _read_python(path: Path, keys: Sequence[str], limits: Sequence[int]) -> tuple[np.ndarray, ...]:
    """The same arrays from a pickle that contains `data` and, for each of `keys`, a list of labels."""
    content = read_plain_pickle(path)
    missing = [key for key in ("data", *keys) if key not in content]
    if missing:
        raise file_error(path, f"it contains no '{missing[0]}', only {', '.join(sorted(content))}")
    pixels = content["data"]
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (_PIXELS,):
        raise file_error(path, f"'data' must be an array of N×{_PIXELS} bytes")
    labels = []
    for key, limit in zip(keys, limits, strict=True):
        try:
            values = np.asarray(content[key])
        except ValueError as error:
            raise file_error(path, f"'{key}' is not a list of integers") from error
        if values.shape != (len(pixels),) or values.dtype.kind not in "iu":
            raise file_error(path, f"'{key}' must be {len(pixels)} integers, one per image")
        labels.append(values.astype(np.int64))
        _check_labels(path, labels[-1], limit)
    return pixels.reshape(-1, 3, 32, 32), *labels


def _read_names(path: Path, key: str) -> tuple[str, ...]:
    """The class names in a pickle of the Python version; empty if there is no such file."""
    if not path.is_file():
        return ()
    listed = read_plain_pickle(path).get(key, ())
    return tuple(name.decode("utf-8") if isinstance(name, bytes) else str(name) for name in listed)


def _batch_files(folder: Path, suffix: str) -> list[Path]:
    """The files data_batch_1, data_batch_2, … There may be fewer than the published five, but no gap."""
    found = sorted(folder.glob(f"data_batch_[0-9]{suffix}"))
    for number, path in enumerate(found, start=1):
        if path.name != f"data_batch_{number}{suffix}":
            raise MissingFilesError(f"{folder} contains {path.name} but no data_batch_{number}{suffix}")
    if not found:
        raise MissingFilesError(f"{folder} contains no data_batch_1{suffix}")
    return found


def _concatenate(parts: Sequence[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """The arrays of several files, concatenated."""
    return parts[0] if len(parts) == 1 else tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def _check_labels(path: Path, values: np.ndarray, limit: int) -> None:
    bad = np.flatnonzero((values < 0) | (values >= limit))
    if bad.size:
        raise file_error(path, f"the label of image {bad[0]} is {values[bad[0]]}; labels must be from 0 to {limit - 1}")


CIFAR10 = DatasetEntry(
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
    loader=load_cifar10,
)

CIFAR100 = replace(
    CIFAR10,
    name="cifar100",
    title="CIFAR-100 colour photographs, 32×32 pixels, fine labels",
    classes=100,
    how_to_get=(
        "unpack cifar-100-binary.tar.gz or cifar-100-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html "
        "there, so that it contains cifar-100-binary/ or cifar-100-python/"
    ),
    layout="[cifar-100-binary/]{train,test}.bin or [cifar-100-python/]{train,test}",
    example='load("cifar100", "~/data/cifar100")',
    loader=load_cifar100,
    fields=("superclass",),
)
