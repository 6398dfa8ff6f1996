"""The JSON files of the LEAF benchmark: samples grouped by user, several users per file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from undergrowth.core import InputError
from undergrowth.data.dataset import Dataset
from undergrowth.data.loaders.files import MissingFilesError, file_error, find_folder, read_bytes

# Converts the raw x and y of one user to arrays; raises a ValueError if they are wrong.
Convert = Callable[[list[Any], list[Any]], tuple[np.ndarray, np.ndarray]]


def load_leaf(name: str, path: Path, convert: Convert, class_names: tuple[str, ...], field: str) -> Dataset:
    """A data set of LEAF, with its users as `field`. LEAF's scripts put train/ and test/ into a folder below `path`."""
    folder = find_folder(path, ("data", name, f"{name}/data"), ("train/*.json",))
    x, y, users = _read_part(folder, "train", convert)
    test_x, test_y, _ = _read_part(folder, "test", convert)
    return Dataset(name, x, y, test_x, test_y, len(class_names), class_names, {field: users})


def _read_part(folder: Path, part: str, convert: Convert) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, labels and users of all samples in folder/part. Files are read one by one to save memory."""
    users: list[str] = []
    inputs: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for path, user, x, y in _users(folder / part):
        try:
            user_x, user_y = convert(x, y)
        except (ValueError, TypeError, OverflowError) as error:
            raise file_error(path, f"user '{user}': {error}") from error
        users.append(user)
        inputs.append(user_x)
        labels.append(user_y)
    if not users:
        raise InputError(f"{folder / part}: none of its files contains a sample")
    return np.concatenate(inputs), np.concatenate(labels), np.repeat(users, [len(y) for y in labels])


def _users(folder: Path) -> Iterator[tuple[Path, str, list[Any], list[Any]]]:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise MissingFilesError(f"{folder} contains no *.json")
    for path in files:
        try:
            content = json.loads(read_bytes(path))
        except (ValueError, RecursionError) as error:
            raise file_error(path, f"it is truncated or not JSON: {error}") from error
        user_data = content.get("user_data") if isinstance(content, dict) else None
        if not isinstance(user_data, dict):
            raise file_error(path, "it has no 'user_data', which every LEAF file has")
        for user, samples in user_data.items():
            x, y = (samples.get(key) if isinstance(samples, dict) else None for key in ("x", "y"))
            if not isinstance(x, list) or not isinstance(y, list):
                raise file_error(path, f"user '{user}' has no lists 'x' and 'y'")
            if len(x) != len(y):
                raise file_error(path, f"user '{user}' has {len(x)} inputs and {len(y)} labels")
            if x:
                yield path, user, x, y
