"""What a run began with besides its settings: objects, source, files, data, frozen weights.

A run stores their names and hashes. A resumed run, or a sweep that takes a finished run, must find the same.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Mapping
from dataclasses import is_dataclass
from os.path import expanduser
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from undergrowth import devices
from undergrowth.core import InputError, Method, Task, Weights
from undergrowth.data import Population, is_table_file
from undergrowth.runs.config import Experiment, PublicSection
from undergrowth.runs.federation import Federation
from undergrowth.runs.method_builder import method_class
from undergrowth.runs.own_code import changed_code
from undergrowth.runs.own_objects import changed_sources
from undergrowth.runs.sections import Named
from undergrowth.runs.start_section import SourceSection
from undergrowth.runs.stored_experiment import object_options

MAX_SAMPLES_PER_SHARD = 1000  # samples whose values are used
_FILES_OF_MODELS = ("weights", "embeddings")  # options that name one
TOLERANCE = 1e-4  # another machine may decode sound or images with other last digits


def fingerprint(population: Population) -> dict[str, Any]:
    """The sizes of all devices; labels, mean and standard deviation of the test set and the first device's samples."""
    sizes = [population.size(name) for name in population.devices]
    first = next(name for name, size in zip(population.devices, sizes, strict=True) if size)
    shards = population.central_test(), population.train(first)
    values = torch.cat([shard.x[:: 1 + len(shard) // MAX_SAMPLES_PER_SHARD].double().flatten() for shard in shards])
    return {
        "sizes": crc32(str(sizes).encode()),
        "labels": [crc32(shard.y.numpy().tobytes()) for shard in shards],
        "mean": float(values.mean()),
        "spread": float(values.std(correction=0)),
    }


def differ(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether two fingerprints belong to different data."""
    exact = any(before[name] != now[name] for name in ("sizes", "labels"))
    scale = TOLERANCE * (abs(before["mean"]) + before["spread"])
    return exact or not all(math.isclose(before[n], now[n], rel_tol=0, abs_tol=scale) for n in ("mean", "spread"))


def frozen_digest(task: Task) -> str | None:
    """The digest of the tensors that the run's models hold beside their weights; None if there are none."""
    models = {"": task.model, **task.ladder}
    tensors = {f"{name}/{key}": value for name, model in models.items() for key, value in model.constants.items()}
    return digest(tensors) if tensors else None


def shapes_of_models(task: Task) -> int:
    """A checksum of the names and shapes of all weights."""
    models = {"": task.model, **task.ladder}
    return crc32(repr([(key, *sorted(model.shapes.items())) for key, model in models.items()]).encode())


def digest(weights: Weights) -> str:
    """SHA-256 over the tensors, by sorted name, as raw little-endian bytes."""
    hashed = hashlib.sha256()
    for name in sorted(weights):
        values = weights[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        if sys.byteorder == "big":
            values = values.reshape(-1, weights[name].element_size())[:, ::-1].copy()
        hashed.update(values.tobytes())
    return hashed.hexdigest()


def hash_files(experiment: Experiment) -> dict[str, str]:
    """The SHA-256 of the file that a setting names, for settings of fleet, topology, models and data that name one.

    The data of the devices has a fingerprint instead, see `check_same_data`.
    """
    models: dict[str, Named] = {"model": experiment.model}
    models |= {f"model.ladder.{number}": rung for number, rung in enumerate(experiment.model.ladder)}
    kind, _, trace = (part.strip() for part in experiment.fleet.availability.partition(":"))
    named = {
        "fleet": "" if experiment.fleet.name in devices.names() else experiment.fleet.name,
        "fleet.availability": trace if kind == "trace" else "",
        "topology": experiment.topology if isinstance(experiment.topology, str) else "",
        "public": _data_file(experiment.public),
        "start.data": _data_file(experiment.start.data),
        "start.weights": experiment.start.weights or "",
        **{f"{name}.{key}": each.options.get(key) for name, each in models.items() for key in _FILES_OF_MODELS},
    }
    paths = {setting: Path(expanduser(text)) for setting, text in named.items() if text and isinstance(text, str)}
    return {setting: _hash_file(path) for setting, path in paths.items() if path.is_file()}


def _data_file(section: PublicSection | SourceSection | None) -> str:
    """The file with the samples of a section, if it may be one file."""
    if section is None or section.name is None:
        return ""
    return section.path or (section.name if is_table_file(section.name) else "")


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def changed_files(before: Mapping[str, str] | None, experiment: Experiment) -> list[str]:
    """The settings whose files are not those with the hashes in `before`, which runs of older versions do not have."""
    now = {} if before is None else hash_files(experiment)
    return [setting for setting, found in (before or {}).items() if now.get(setting) != found]


def check_same_inputs(
    row: Mapping[str, Any], experiment: Experiment, given: Mapping[str, Any], allow_changed_source: bool
) -> list[str]:
    """Refuses to continue the run in a row of the store with other objects, source or files than it began with.

    `given`: the objects that the user gave. Returns notes about what has changed all the same.
    """
    run, began = row["id"], row["experiment"]
    for part, used in began["objects"].items():
        if used and given.get(part) is None:
            raise InputError(
                f"run '{run}' was given a {part} object ({used}); resume it from Python: ug.resume('{run}', {part}=...)"
            )
    changed = " and ".join(changed_sources(began.get("sources", ())))
    notes = _check_sources(run, changed, allow_changed_source)
    if given["method"] is not None:
        _check_same_method(row, given["method"])
    for setting in changed_files(began.get("files"), experiment):
        raise InputError(f"{setting}: its file has changed since run '{run}' began; restore it, or start a new run")
    return notes


def check_same_code(
    row: Mapping[str, Any], federation: Federation, given: Mapping[str, Any], allow_changed_source: bool
) -> list[str]:
    """Refuses to continue the run in a row of the store with other code of a given model, loss or metric.

    Returns notes as `check_same_inputs` does.
    """
    changed = changed_code(row["experiment"].get("code", {}), given, federation.task)
    return _check_sources(row["id"], " and ".join(changed), allow_changed_source)


def _check_sources(run: str, changed: str, allowed: bool) -> list[str]:
    if changed and not allowed:
        raise InputError(
            f"run '{run}': the source of {changed} has changed since the run began, so the rest would not be that of "
            "an uninterrupted run; restore it, or go on with --allow-changed-source (allow_changed_source=True)"
        )
    return [f"resumed with another source of {changed} than the run began with"] if changed else []


def _check_same_method(row: Mapping[str, Any], method: Method) -> None:
    """Refuses a method object of another class, or with other options.

    Rules among the fields of a method, such as its client, are not compared: a user may mend one and go on.
    """
    named = row["experiment"]["objects"].get("method") or getattr(method_class(row["method"]), "__name__", None)
    if named and named != type(method).__name__:
        raise InputError(
            f"method: {type(method).__name__} is not that of run '{row['id']}', {named}; resume it with the same "
            "method, or start a new run"
        )
    before, now = row["experiment"]["settings"]["method"], object_options(method)
    for key in before.keys() & now.keys():
        if before[key] != now[key] and not is_dataclass(getattr(method, key)):
            raise InputError(
                f"method.{key} {now[key]!r} of the object is not that of run '{row['id']}', {before[key]!r}; "
                f"resume it with the same object, or start a new run"
            )


def check_same_data(row: Mapping[str, Any], federation: Federation) -> None:
    """Refuses to continue the run in a row of the store with other data, models or frozen weights than at its start."""
    before = row["experiment"].get("fingerprint")
    if before is not None and differ(before, fingerprint(federation.population)):
        raise InputError(f"data: it is not the data of run '{row['id']}'; restore that data, or start a new run")
    shapes = row["experiment"].get("shapes")
    if shapes is not None and shapes != shapes_of_models(federation.task):
        raise InputError(
            f"model: its weights have other names or shapes than those of run '{row['id']}'; resume it with the same "
            "model, or start a new run"
        )
    frozen = row["experiment"].get("frozen")
    if frozen is not None and frozen != frozen_digest(federation.task):
        raise InputError(
            f"model: its frozen weights are not those of run '{row['id']}'; restore them, or start a new run"
        )
