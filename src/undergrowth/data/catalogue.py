"""The catalogue of data sets: their names, their descriptions, and loading by name."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from undergrowth.core import InputError, suggest
from undergrowth.data.dataset import Array, Dataset, to_numpy
from undergrowth.data.dataset_entry import SAMPLE_OPTIONS, DatasetEntry
from undergrowth.data.labels import strata_of
from undergrowth.data.loaders import (
    agnews,
    cifar,
    diabetes,
    digits,
    femnist,
    hapt,
    hugging_face,
    images,
    mnist,
    npz,
    operanet,
    photographs,
    reddit,
    sentences,
    shakespeare,
    speech_commands,
    table,
    text,
)
from undergrowth.data.loaders.files import MissingFilesError
from undergrowth.data.normalisation import normalise
from undergrowth.data.split import proportional_sample

FOLDER_VARIABLE = "UNDERGROWTH_DATA"

_ENTRIES = (
    digits.ENTRY,
    diabetes.ENTRY,
    mnist.MNIST,
    mnist.FASHION_MNIST,
    cifar.CIFAR10,
    cifar.CIFAR100,
    femnist.ENTRY,
    shakespeare.ENTRY,
    reddit.ENTRY,
    text.ENTRY,
    agnews.ENTRY,
    sentences.SST2,
    sentences.SST5,
    sentences.MNLI,
    photographs.FLOWERS102,
    photographs.CUB,
    photographs.CARS,
    photographs.EUROSAT,
    speech_commands.ENTRY,
    hapt.ENTRY,
    operanet.ENTRY,
    npz.ENTRY,
    images.ENTRY,
    table.ENTRY,
    hugging_face.ENTRY,
)
_TABLE = {entry.name: entry for entry in _ENTRIES}


def names() -> list[str]:
    """The names that `load` accepts; the embedded default comes first."""
    return list(_TABLE)


def describe(name: str) -> DatasetEntry:
    """The catalogue entry of a data set, without reading its files. The path of a table stands for `table`."""
    if isinstance(name, str) and table.is_table_file(name):
        return table.ENTRY
    if name not in _TABLE:
        raise InputError(f"data set {name!r} is not known; {suggest(str(name), _TABLE)}")
    return _TABLE[name]


def load(name: str, path: str | os.PathLike[str] | None = None, **options: Any) -> Dataset:
    """Loads a data set from the folder or file `path`; `describe(name).layout` lists the files.

    The default path is $UNDERGROWTH_DATA/NAME, or ~/.cache/undergrowth/NAME if the variable is not set. `name` may also
    be the path of a table, such as "table.csv".
    """
    entry = describe(name)
    if name != entry.name:
        if path is not None:
            raise InputError(f"data set '{name}' is itself a path, but path is '{path}'; give one of them")
        file = Path(os.path.expanduser(name))
        if not file.is_file():
            where = "" if file.is_absolute() else f"; the path is relative to '{Path.cwd()}'"
            problem = "it is a folder, not a file" if file.is_dir() else f"there is no such file{where}"
            raise InputError(f"data '{name}': {problem}")
        path = name
    for option in options:
        if option not in entry.options:
            raise InputError(f"data set '{name}' has no option '{option}'; {suggest(option, entry.options)}")
    sample_counts = {option: options.pop(option, None) for option in SAMPLE_OPTIONS}
    normalisation = options.pop("normalise", None)
    if entry.embedded:
        if path is not None:
            raise InputError(f"data set '{name}' takes no path, but path is '{path}': it needs no files")
        dataset = entry.loader(**options)
    elif name == "hf" and hugging_face.is_hugging_face(path):
        dataset = entry.loader(path, **options)
    else:
        dataset = _load_files(entry, path, options)
    dataset.check()
    dataset = _sample(dataset, **sample_counts)
    return dataset if normalisation is None else normalise(dataset, normalisation)


def _sample(dataset: Dataset, train_samples: int | None, test_samples: int | None) -> Dataset:
    for option, count in (("train_samples", train_samples), ("test_samples", test_samples)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise InputError(f"{option} is {count!r}; it must be a whole number of at least 1")
    if train_samples is not None:
        kept = proportional_sample(_strata(dataset.y, dataset.task), train_samples)
        fields = {key: values[kept] for key, values in dataset.fields.items()}
        dataset = replace(dataset, x=dataset.x[kept], y=dataset.y[kept], fields=fields)
    if test_samples is not None:
        kept = proportional_sample(_strata(dataset.test_y, dataset.task), test_samples)
        test_fields = {key: values[kept] for key, values in dataset.test_fields.items()}
        dataset = replace(dataset, test_x=dataset.test_x[kept], test_y=dataset.test_y[kept], test_fields=test_fields)
    return dataset


def _strata(labels: Array, task: str) -> np.ndarray:
    """The groups whose frequencies a sample keeps: all samples are one group if the task has no classes."""
    strata = strata_of(to_numpy(labels), task)
    return np.zeros(len(labels), np.int64) if strata is None else strata


def _load_files(entry: DatasetEntry, path: str | os.PathLike[str] | None, options: dict[str, Any]) -> Dataset:
    if path is not None and not isinstance(path, str | os.PathLike):
        raise InputError(f"path is {path!r}; it must be the path of a folder or file")
    folder = default_path(entry.name) if path is None else Path(path)
    try:
        folder = folder.expanduser()
    except RuntimeError as error:  # ~name of an unknown user
        raise InputError(f"path is '{path}': {error}") from error
    try:
        return entry.loader(folder, **options)
    except MissingFilesError as error:
        where = f"; or give another path, or set {FOLDER_VARIABLE} to a folder that contains {entry.name}"
        where = where if path is None else ""
        # The absolute path, because a run resumed from another folder resolves a relative path differently.
        raise MissingFilesError(
            f"data set '{entry.name}' is not in {folder.absolute()} ({error}): {entry.how_to_get}{where}"
        ) from None


def default_path(name: str) -> Path:
    """Where a data set is read from if no path is given."""
    root = os.environ.get(FOLDER_VARIABLE)
    return (Path(root) if root else Path("~/.cache/undergrowth")) / name
