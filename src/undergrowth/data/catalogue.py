"""The table of data sets: what there is, what each needs, and loading one by name."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from undergrowth.core.errors import InputError, nearest
from undergrowth.data.dataset import Dataset, to_numpy
from undergrowth.data.entry import SAMPLES, Entry
from undergrowth.data.loaders import (
    agnews,
    cifar10,
    cifar100,
    digits,
    fashion_mnist,
    femnist,
    images,
    mnist,
    npz,
    shakespeare,
    speech_commands,
)
from undergrowth.data.loaders.files import NotThere
from undergrowth.data.split import proportional_sample

FOLDER_VARIABLE = "UNDERGROWTH_DATA"

_ENTRIES = (
    digits.ENTRY,
    mnist.ENTRY,
    fashion_mnist.ENTRY,
    cifar10.ENTRY,
    cifar100.ENTRY,
    femnist.ENTRY,
    shakespeare.ENTRY,
    agnews.ENTRY,
    speech_commands.ENTRY,
    npz.ENTRY,
    images.ENTRY,
)
_TABLE = {entry.name: entry for entry in _ENTRIES}


def names() -> list[str]:
    """The names that `load` knows, the embedded default first."""
    return list(_TABLE)


def describe(name: str) -> Entry:
    """What is known about a data set without reading it."""
    if name not in _TABLE:
        raise InputError(f"data set {name!r} is not known; {nearest(str(name), _TABLE)}")
    return _TABLE[name]


def load(name: str, path: str | os.PathLike[str] | None = None, **options: Any) -> Dataset:
    """Read a data set from the folder (or file) at `path`; see `describe(name)` for what must lie there.

    Without a path it is looked for in $UNDERGROWTH_DATA/NAME, or in ~/.cache/undergrowth/NAME.
    """
    entry = describe(name)
    for option in options:
        if option not in entry.options:
            raise InputError(f"data set '{name}' has no option '{option}'; {nearest(option, entry.options)}")
    numbers = {option: options.pop(option, None) for option in SAMPLES}
    if entry.embedded:
        if path is not None:
            raise InputError(f"data set '{name}' takes no path, but path is '{path}': it needs no files")
        dataset = entry.loader(**options)
    else:
        dataset = _load_files(entry, path, options)
    dataset.check()
    return _sampled(dataset, **numbers)


def _sampled(dataset: Dataset, train_samples: int | None, test_samples: int | None) -> Dataset:
    for option, count in (("train_samples", train_samples), ("test_samples", test_samples)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise InputError(f"{option} is {count!r}; it must be a whole number from 1 on")
    if train_samples is not None:
        kept = proportional_sample(dataset.labels, train_samples)
        fields = {key: values[kept] for key, values in dataset.fields.items()}
        dataset = replace(dataset, x=dataset.x[kept], y=dataset.y[kept], fields=fields)
    if test_samples is not None:
        kept = proportional_sample(to_numpy(dataset.test_y), test_samples)
        dataset = replace(dataset, test_x=dataset.test_x[kept], test_y=dataset.test_y[kept])
    return dataset


def _load_files(entry: Entry, path: str | os.PathLike[str] | None, options: dict[str, Any]) -> Dataset:
    if path is not None and not isinstance(path, str | os.PathLike):
        raise InputError(f"path is {path!r}; it must be the name of a folder or file")
    place = default_place(entry.name) if path is None else Path(path)
    try:
        place = place.expanduser()
    except RuntimeError as error:  # ~someone, where there is no such user
        raise InputError(f"path is '{path}': {error}") from error
    try:
        return entry.loader(place, **options)
    except NotThere as error:
        where = (
            ""
            if path is not None
            else f"; or give another path, or set {FOLDER_VARIABLE} to a folder with {entry.name} in it"
        )
        # In full: a run that is resumed from another folder looks for a relative path there.
        raise InputError(
            f"data set '{entry.name}' is not in {place.absolute()} ({error}): {entry.how_to_get}{where}"
        ) from None


def default_place(name: str) -> Path:
    """Where a data set is looked for when no path is given."""
    root = os.environ.get(FOLDER_VARIABLE)
    return (Path(root) if root else Path("~/.cache/undergrowth")) / name
