"""An .npz file with inputs and labels of any task."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from undergrowth.core import TASKS, InputError
from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.files import MissingFilesError, file_error
from undergrowth.data.loaders.targets import (
    TASK_OPTION,
    as_targets,
    check_task,
    count_targets,
    next_tokens,
    split_samples,
)

# `zipfile` raises RuntimeError for an encrypted file, and its subclass NotImplementedError for an unknown compression.
_ERRORS_OF_DAMAGED_FILES = (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error)
_KEYS = {
    "x": ("x", "x_train", "train_x"),
    "y": ("y", "y_train", "train_y"),
    "test_x": ("x_test", "test_x"),
    "test_y": ("y_test", "test_y"),
}


def load(
    path: Path, *, classes: int | None = None, test_share: float = 0.2, seed: int = 0, task: str = "classification"
) -> Dataset:
    """The arrays x and y, and optionally x_test and y_test. Other arrays with one entry per sample are fields.

    Without x_test, the fraction `test_share` of every class is the test set. `classes` defaults to the highest label
    plus one, or to the number of labels of a sample. With the task next-token, x alone is enough.
    """
    check_task(task, TASKS, "an .npz file")
    file = _find(path)
    arrays = read_arrays(file)
    found = {part: next((key for key in keys if key in arrays), None) for part, keys in _KEYS.items()}
    follows = task == "next-token" and found["y"] is None  # the labels are the next tokens of x
    for part in ("x",) if follows else ("x", "y"):
        if found[part] is None:
            raise file_error(
                file, f"it contains no '{part}', only {', '.join(sorted(arrays)) or 'nothing'}; x and y are needed"
            )
    if (found["test_x"] is None) != (found["test_y"] is None) and not follows:
        raise file_error(file, "it contains only one of x_test and y_test; give both or none")
    parts = {part: arrays.pop(key) for part, key in found.items() if key is not None}
    for part in parts:
        convert = _inputs if part.endswith("x") else _labels
        parts[part] = convert(file, part, parts[part], task)
    if follows:
        parts |= {part[:-1] + "y": _following(file, part, parts[part]) for part in ("x", "test_x") if part in parts}
    class_names = tuple(str(name) for name in np.atleast_1d(arrays.pop("class_names", np.array([], dtype=str))))
    fields = {key: values for key, values in arrays.items() if values.shape[:1] == parts["y"].shape[:1]}
    if classes is None:
        classes = _count_classes(parts, task)
    if "test_x" not in parts:
        if len(parts["x"]) != len(parts["y"]):
            raise file_error(file, f"x has {len(parts['x'])} samples and y has {len(parts['y'])}")
        # Checked before the split, so that a message gives the position in the file.
        Dataset(file.stem, parts["x"], parts["y"], parts["x"], parts["y"], classes, task=task).check_part("x")
        if len(parts["x"]) == 1:
            raise file_error(file, "it has one sample; at least two are needed, one of them for the test set")
        train, test = split_samples(parts["y"], task, test_share, seed)
        parts |= {"test_x": parts["x"][test], "test_y": parts["y"][test]}
        parts |= {"x": parts["x"][train], "y": parts["y"][train]}
        fields = {key: values[train] for key, values in fields.items()}
    return Dataset(
        file.stem, parts["x"], parts["y"], parts["test_x"], parts["test_y"], classes, class_names, fields, task=task
    )


def _count_classes(parts: dict[str, np.ndarray], task: str) -> int:
    if task in ("regression", "multi-label"):
        return count_targets(parts["y"])
    counted = parts if task == "next-token" else [part for part in parts if part.endswith("y")]
    # What holds no whole numbers is refused later.
    return 1 + max((int(parts[part].max(initial=0)) for part in counted if parts[part].dtype.kind in "iu"), default=0)


def _find(path: Path) -> Path:
    if path.is_file():
        return path
    files = sorted(path.glob("*.npz"))
    if len(files) > 1:
        raise InputError(f"path is '{path}', a folder with {len(files)} .npz files; name one of them")
    if not files:
        raise MissingFilesError("it contains no .npz file" if path.is_dir() else "there is no such file or folder")
    return files[0]


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz file, by name."""
    try:
        # Opened here, because numpy does not close a damaged file.
        with file.open("rb") as opened:
            if opened.read(2) not in (b"PK", b"\x93N"):  # a zip archive, or a single array
                raise file_error(file, "it is not an .npz file, which numpy.savez(file, x=inputs, y=labels) writes")
            opened.seek(0)
            content = np.load(opened, allow_pickle=False)
            if not isinstance(content, np.lib.npyio.NpzFile):
                raise file_error(file, "it is a single array; an .npz file with x and y is needed")
            return {key: content[key] for key in content}
    except InputError:
        raise
    except _ERRORS_OF_DAMAGED_FILES as error:
        raise file_error(file, f"it cannot be read as .npz: {error}") from error


def _inputs(file: Path, part: str, x: np.ndarray, task: str) -> np.ndarray:
    """Adds a channel dimension to images of bytes, and moves a last channel dimension to the front."""
    if x.ndim < 2:
        raise file_error(file, f"{part} has shape {x.shape}; inputs need a sample dimension and at least one more")
    if task == "next-token" and x.dtype.kind in "iu":
        return x.astype(np.int64)  # bytes would be pixels
    if x.dtype == np.uint8 and x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[-1] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        return np.ascontiguousarray(np.moveaxis(x, -1, 1))
    return x.astype(np.float32) if x.dtype == np.float16 else x


def _following(file: Path, part: str, x: np.ndarray) -> np.ndarray:
    if x.ndim != 2 or x.dtype.kind not in "iu":
        raise file_error(
            file, f"{part} has shape {x.shape} and type {x.dtype}; without y, the task next-token needs rows of tokens"
        )
    return next_tokens(x)


def _labels(file: Path, part: str, y: np.ndarray, task: str) -> np.ndarray:
    if task in ("regression", "multi-label") and y.ndim in (1, 2) and y.dtype.kind in "iufb":
        return as_targets(y, task)
    if task != "classification":
        return y  # checked with the whole data set
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.dtype.kind not in "iu" or y.ndim != 1:
        raise file_error(
            file, f"{part} has shape {y.shape} and type {y.dtype}; labels must be a list of integers of at least 0"
        )
    return y.astype(np.int64)


ENTRY = DatasetEntry(
    name="npz",
    title="Any .npz file",
    licence="that of the file",
    how_to_get="write one with numpy.savez(file, x=inputs, y=labels) and give its path",
    layout="arrays x, y of any task, optionally x_test, y_test, class_names; other arrays as long as y are fields",
    example='load("npz", "~/data/mine.npz")',
    loader=load,
    loader_options={
        "classes": "number of classes; by default the highest label plus one",
        "test_share": "fraction of every class for the central test set, if the file has none",
        "seed": "seed of the draw of that set",
        "task": TASK_OPTION.format("classification, regression, multi-label, next-token (y may be left out)"),
    },
)
