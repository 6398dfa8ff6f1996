"""The data of a device that was not in a run: read, brought to the run's classes and scale, and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from undergrowth.core import InputError, suggest
from undergrowth.data import Dataset, describe, is_table_file, load, normalise
from undergrowth.data.dataset import to_numpy
from undergrowth.runs.config import Experiment
from undergrowth.runs.own_objects import is_reference

MIN_TRAINING, MIN_TEST = 4, 1  # samples; fewer say nothing, and cannot be divided for early stopping


def read_data(given: str | PathLike[str] | Dataset, experiment: Experiment, facts: Mapping[str, Any]) -> Dataset:
    """The samples of the new device, with the classes of the run. `facts`: what the store keeps of the run's data.

    `given` is a data set, an .npz file, a folder with one, a folder in the format of the run's data set, or a folder of
    images.
    """
    data = given if isinstance(given, Dataset) else _load(Path(given).expanduser(), experiment)
    data.check()
    shape, classes = tuple(facts["shape"]), int(facts["classes"])
    if data.shape != shape:
        raise InputError(f"data '{data.name}': one input has shape {data.shape}, and those of the run have {shape}")
    data = _with_run_classes(data, classes, tuple(facts.get("class_names") or ()))
    figures = facts.get("normalisation")
    data = normalise(data, figures) if figures else data
    for part, samples, least in (("training", len(data), MIN_TRAINING), ("test", len(data.test_y), MIN_TEST)):
        if samples < least:
            raise InputError(f"data '{data.name}': it has {samples} {part} samples, and at least {least} are needed")
    return data


def describe_data(population: Any) -> dict[str, Any]:
    """What a run stores of its data, so that other data can be brought to its classes and scale."""
    dataset = getattr(population, "dataset", None)
    if not isinstance(dataset, Dataset):
        return {}
    scaled = dataset.mean is not None and dataset.std is not None
    figures = {"mean": list(dataset.mean or ()), "std": list(dataset.std or ())} if scaled else None
    return {"class_names": list(dataset.class_names), "normalisation": figures}


def _load(path: Path, experiment: Experiment) -> Dataset:
    if not path.exists():
        raise InputError(f"data '{path}': there is no such file or folder")
    if is_table_file(path.name):
        raise InputError(
            f"data '{path}': a table is scaled by its own rows, not by those of the run; write its inputs to an .npz "
            "file, scaled as in the run"
        )
    if path.suffix == ".npz" or (path.is_dir() and any(path.glob("*.npz"))):
        return load("npz", path)
    if not path.is_dir():
        raise InputError(f"data '{path}' is not an .npz file; give one, or a folder")
    section = experiment.data
    if not is_reference(section.name) and not is_table_file(section.name):
        entry = describe(section.name)
        if not entry.embedded and section.name not in ("npz", "table", "hf", "images"):
            return load(section.name, path, **section.options)
    if not any(each.is_dir() for each in path.iterdir()):
        raise InputError(f"data '{path}': it has neither an .npz file nor a folder of images for each class")
    options = section.options if section.name == "images" else {}
    return load("images", path, **options)


def _with_run_classes(data: Dataset, classes: int, names: tuple[str, ...]) -> Dataset:
    """The data with the run's numbers of classes: by name if both have names, else the numbers are the same."""
    if data.class_names and names and data.class_names != names:
        for name in data.class_names:
            if name not in names:
                raise InputError(f"data '{data.name}': label '{name}' is not known to the run; {suggest(name, names)}")
        number = np.array([names.index(name) for name in data.class_names])
        changed = {part: number[to_numpy(getattr(data, part))] for part in ("y", "test_y")}
        return replace(data, **changed, classes=classes, class_names=names)
    highest = max(int(to_numpy(part).max()) for part in (data.y, data.test_y))
    if highest >= classes:
        raise InputError(
            f"data '{data.name}': label {highest} is not known to the run, whose labels are 0 to {classes - 1}"
        )
    return replace(data, classes=classes, class_names=names)
