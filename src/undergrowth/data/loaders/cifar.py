"""The two published formats of the CIFAR sets: records of label bytes and pixels, and Python pickles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from undergrowth.data.loaders.files import MissingFilesError, file_error, read_bytes
from undergrowth.data.loaders.plain_pickle import read_plain_pickle

_PIXELS = 3 * 32 * 32


def read_binary(path: Path, limits: Sequence[int]) -> tuple[np.ndarray, ...]:
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


def read_python(path: Path, keys: Sequence[str], limits: Sequence[int]) -> tuple[np.ndarray, ...]:
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


def read_names(path: Path, key: str) -> tuple[str, ...]:
    """The class names in a pickle of the Python version; empty if there is no such file."""
    if not path.is_file():
        return ()
    listed = read_plain_pickle(path).get(key, ())
    return tuple(name.decode("utf-8") if isinstance(name, bytes) else str(name) for name in listed)


def batch_files(folder: Path, suffix: str) -> list[Path]:
    """The files data_batch_1, data_batch_2, … There may be fewer than the published five, but no gap."""
    found = sorted(folder.glob(f"data_batch_[0-9]{suffix}"))
    for number, path in enumerate(found, start=1):
        if path.name != f"data_batch_{number}{suffix}":
            raise MissingFilesError(f"{folder} contains {path.name} but no data_batch_{number}{suffix}")
    if not found:
        raise MissingFilesError(f"{folder} contains no data_batch_1{suffix}")
    return found


def concatenate(parts: Sequence[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """The arrays of several files, concatenated."""
    return parts[0] if len(parts) == 1 else tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def _check_labels(path: Path, values: np.ndarray, limit: int) -> None:
    bad = np.flatnonzero((values < 0) | (values >= limit))
    if bad.size:
        raise file_error(path, f"the label of image {bad[0]} is {values[bad[0]]}; labels must be from 0 to {limit - 1}")
