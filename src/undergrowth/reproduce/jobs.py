"""The runs that a table needs: which are in the store already, which are under way, where their data lie."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from undergrowth.core import InputError, nearest
from undergrowth.data import describe, names
from undergrowth.data.catalogue import default_path
from undergrowth.reproduce.cells import Cell, data_sections, layered, source_of
from undergrowth.reproduce.table import Layer
from undergrowth.runs import Store
from undergrowth.runs.config import Experiment, experiment
from undergrowth.runs.result import MODEL_FILE

_DECIDES = ("seed", "precision", "evaluate_every")  # what of the section `run` has a say in the figures


@dataclass(frozen=True)
class Job:
    """One run. With a `start`, the model begins with the final weights of that run."""

    tree: Layer
    start: Job | None = None

    def begun(self, weights: Path | None) -> Job:
        """The same without a start, and with the weights that it left."""
        if weights is None:
            return replace(self, start=None)
        return Job(layered(self.tree, {"model": {"weights": str(weights), "skip_head": True}}))

    @cached_property
    def key(self) -> str:
        """Two jobs with the same key are the same run."""
        return identity(experiment(self.tree)) + (self.start.key if self.start else "")

    @property
    def rounds(self) -> int:
        return experiment(self.tree).train.rounds


def identity(settings: Experiment) -> str:
    """All that decides about the figures, and nothing of where files lie or what computes them."""
    tree = settings.model_dump(mode="json")
    for section in ("data", "public"):
        if isinstance(tree.get(section), dict):
            tree[section].pop("path", None)
    tree["run"] = {key: tree["run"][key] for key in _DECIDES}
    if tree["model"].get("weights"):  # their folder is named after the run that left them
        tree["model"]["weights"] = Path(tree["model"]["weights"]).parent.name
    return json.dumps(tree, sort_keys=True)


class Shelf:
    """The runs of a store, by what they are."""

    def __init__(self, store: Store) -> None:
        self.folder = store.folder
        self._runs: dict[str, list[tuple[str, bool, Experiment]]] = {}
        for row in store.runs():
            if any(row["experiment"]["objects"].values()):
                continue
            try:
                settings = experiment(row["experiment"]["settings"])
            except InputError:  # of a version that had other settings
                continue
            found = self._runs.setdefault(identity(settings), [])
            found.append((row["id"], row["status"] == "done", settings))

    def done(self, job: Job) -> str | None:
        """The finished run that this job asks for."""
        if job.start:
            begun = self.done(job.start)
            return self.done(job.begun(self.weights(begun))) if begun else None
        return next((run for run, done, _ in self._runs.get(job.key, ()) if done), None)

    def unfinished(self, job: Job) -> str | None:
        """A run to go on with: the last one that was begun like this, on the same device and with the same files."""
        wanted = _place(experiment(job.tree))
        found = [run for run, done, settings in self._runs.get(job.key, ()) if not done and _place(settings) == wanted]
        return found[-1] if found else None

    def weights(self, run: str) -> Path:
        return self.folder / run / MODEL_FILE


def _place(settings: Experiment) -> tuple[Any, ...]:
    tree = settings.model_dump()
    files = [(tree.get(section) or {}).get("path") for section in ("data", "public")]
    return (tree["run"]["device"], *files)


class Sources:
    """Where the files of data sets are: what the user says, or else the usual place."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        for source, path in paths.items():
            if not Path(path).expanduser().exists():
                raise InputError(f"--data-path {source}={path}: there is no such folder or file")
        self.paths = paths

    def located(self, tree: Layer) -> Layer:
        result = dict(tree)
        for name, section in data_sections(tree).items():
            result[name] = {key: value for key, value in section.items() if key != "path"}
            if source_of(section) in self.paths:
                result[name]["path"] = self.paths[source_of(section)]
        return result

    def missing(self, tree: Layer) -> set[str]:
        """The data sets that an experiment of a table needs and that are not there."""
        needed = {source_of(section): section["name"] for section in data_sections(tree).values()}
        return {source for source, name in needed.items() if not self._there(source, name)}

    def _there(self, source: str, name: str) -> bool:
        if source in self.paths or describe(name).embedded:
            return True
        return source == name and default_path(name).expanduser().exists()


def read_paths(texts: list[str], known: set[str]) -> dict[str, str]:
    """NAME=FOLDER of the command line."""
    paths = {}
    for text in texts:
        source, equals, path = text.partition("=")
        if not equals or not path:
            raise InputError(f"--data-path '{text}' must be NAME=FOLDER, such as cifar10=~/data/cifar10")
        if source not in known and source not in names():
            raise InputError(f"--data-path '{text}': '{source}' is not known; {nearest(source, known)}")
        paths[source] = path
    return paths


def jobs_of(cell: Cell, seeds: int, run: Layer, sources: Sources, shelf: Shelf) -> tuple[list[Job], set[str]]:
    """A job for every seed; or none, and the data sets without which there is none."""
    choices = []
    for start in cell.starts or (None,):
        begin = None if start is None else _job(start, 0, run, sources)
        jobs = [_job(cell.tree, seed, run, sources, begin) for seed in range(seeds)]
        missing: set[str] = set()
        for job, tree in ((begin, start), *((job, cell.tree) for job in jobs)):
            if job is not None and tree is not None and not shelf.done(job):
                missing |= sources.missing(tree)
        if not missing:
            return jobs, set()
        choices.append(missing)
    return [], min(choices, key=len)


def _job(tree: Layer, seed: int, run: Layer, sources: Sources, start: Job | None = None) -> Job:
    return Job(layered(sources.located(tree), {"run": {**run, "seed": seed}}), start)
