"""The two published forms of the CIFAR sets: records of label bytes and pixels, and pickles for Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from undergrowth.data.loaders.files import NotThere, broken, read_bytes
from undergrowth.data.loaders.plain_pickle import read_plain_pickle

_PIXELS = 3 * 32 * 32


def read_binary(path: Path, limits: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Images, then one int64 array for each label byte in front of them; `limits` are the numbers of classes."""
    raw = np.frombuffer(read_bytes(path), dtype=np.uint8)
    width = len(limits) + _PIXELS
    if raw.size == 0 or raw.size % width:
        raise broken(path, f"it is truncated or damaged: {raw.size} bytes is no multiple of {width}")
    records = raw.reshape(-1, width)
    labels = [records[:, column].astype(np.int64) for column in range(len(limits))]
    for values, limit in zip(labels, limits):
        _check_labels(path, values, limit)
    return records[:, len(limits) :].reshape(-1, 3, 32, 32), *labels


def read_python(path: Path, keys: Sequence[str], limits: Sequence[int]) -> tuple[np.ndarray, ...]:
    """The same from a pickle that holds `data` and, under each of `keys`, a list of labels."""
    content = read_plain_pickle(path)
    missing = [key for key in ("data", *keys) if key not in content]
    if missing:
        raise broken(path, f"it holds no '{missing[0]}', only {', '.join(sorted(content))}")
    pixels = content["data"]
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (_PIXELS,):
        raise broken(path, f"'data' must be an array of N×{_PIXELS} bytes")
    labels = []
    for key, limit in zip(keys, limits):
        try:
            values = np.asarray(content[key])
        except ValueError as error:
            raise broken(path, f"'{key}' is not a list of integers") from error
        if values.shape != (len(pixels),) or values.dtype.kind not in "iu":
            raise broken(path, f"'{key}' must be {len(pixels)} integers, one for each image")
        labels.append(values.astype(np.int64))
        _check_labels(path, labels[-1], limit)
    return pixels.reshape(-1, 3, 32, 32), *labels


def read_names(path: Path, key: str) -> tuple[str, ...]:
    """The class names in a pickle of the Python version; none when the file is not there."""
    if not path.is_file():
        return ()
    listed = read_plain_pickle(path).get(key, ())
    return tuple(name.decode("utf-8") if isinstance(name, bytes) else str(name) for name in listed)


def batches(folder: Path, suffix: str) -> list[Path]:
    """data_batch_1 and on. Fewer than the published five are taken as they are; a gap is an error."""
    found = sorted(folder.glob(f"data_batch_[0-9]{suffix}"))
    for number, path in enumerate(found, start=1):
        if path.name != f"data_batch_{number}{suffix}":
            raise NotThere(f"{folder} holds {path.name} but no data_batch_{number}{suffix}")
    if not found:
        raise NotThere(f"{folder} holds no data_batch_1{suffix}")
    return found


def join(parts: Sequence[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """Several files' arrays as one of each."""
    return parts[0] if len(parts) == 1 else tuple(np.concatenate(column) for column in zip(*parts))


def _check_labels(path: Path, values: np.ndarray, limit: int) -> None:
    bad = np.flatnonzero((values < 0) | (values >= limit))
    if bad.size:
        raise broken(path, f"the label of image {bad[0]} is {values[bad[0]]}; labels must be from 0 to {limit - 1}")
