"""The runs that a table needs, and the lookup of those that are already in the store."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from undergrowth.core import InputError
from undergrowth.reproduce.data_paths import DataPaths
from undergrowth.reproduce.table import Raw
from undergrowth.reproduce.table_cells import Cell, merge_layers
from undergrowth.runs import Store
from undergrowth.runs.config import Experiment, parse_experiment
from undergrowth.runs.result import MODEL_FILE
from undergrowth.runs.stored_experiment import fill, option_defaults, stored_experiment

_RUN_KEYS_THAT_CHANGE_RESULTS = ("seed", "precision", "evaluate_every")


@dataclass(frozen=True)
class Job:
    """One run. With `start`, the model is initialised with the final weights of that pretraining job."""

    raw: Raw
    start: Job | None = None

    def with_weights(self, weights: Path) -> Job:
        """The same job with the file of the pretrained weights instead of the pretraining job."""
        return Job(merge_layers(self.raw, {"model": {"weights": str(weights), "skip_head": True}}))

    @cached_property
    def key(self) -> str:
        """Jobs with equal keys are the same run."""
        return experiment_key(parse_experiment(self.raw)) + (self.start.key if self.start else "")


def experiment_key(described: Experiment) -> str:
    """Everything in an experiment that changes its result: no file paths, torch device or engine."""
    raw = fill(described.model_dump(mode="json"), option_defaults(described))
    for section in ("data", "public"):
        if isinstance(raw.get(section), dict):
            raw[section].pop("path", None)
    raw["run"] = {key: raw["run"][key] for key in _RUN_KEYS_THAT_CHANGE_RESULTS}
    if raw["model"].get("weights"):  # the folder of the file is named after the run that trained the weights
        raw["model"]["weights"] = Path(raw["model"]["weights"]).parent.name
    return json.dumps(raw, sort_keys=True)


class RunIndex:
    """The runs of a store by the key of their experiment."""

    def __init__(self, store: Store) -> None:
        self.folder = store.folder
        self._runs: dict[str, list[tuple[str, bool, Experiment]]] = {}
        for row in store.runs():
            if any(row["experiment"]["objects"].values()):
                continue
            try:
                described = stored_experiment(row)
            except InputError:  # written by a version with other settings
                continue
            runs = self._runs.setdefault(experiment_key(described), [])
            runs.append((row["id"], row["status"] == "done", described))

    def finished_run(self, job: Job) -> str | None:
        """The id of a finished run of `job`."""
        if job.start:
            start = self.finished_run(job.start)
            return self.finished_run(job.with_weights(self.weights_file(start))) if start else None
        return next((run for run, done, _ in self._runs.get(job.key, ()) if done), None)

    def unfinished_run(self, job: Job) -> str | None:
        """The id of the newest unfinished run of `job` with the same torch device and files, to be resumed."""
        wanted = _location(parse_experiment(job.raw))
        runs = self._runs.get(job.key, ())
        return next((run for run, done, each in reversed(runs) if not done and _location(each) == wanted), None)

    def weights_file(self, run: str) -> Path:
        return self.folder / run / MODEL_FILE


def _location(described: Experiment) -> tuple[Any, ...]:
    raw = described.model_dump()
    return (raw["run"]["device"], *((raw.get(section) or {}).get("path") for section in ("data", "public")))


def build_jobs(cell: Cell, seeds: int, run: Raw, paths: DataPaths, index: RunIndex) -> tuple[list[Job], set[str]]:
    """One job per seed; or no jobs, and the names of the missing data sets.

    If the cell has alternative pretrainings, the first one whose data is available is used. Data is not needed for
    jobs that are already finished.
    """
    missing_per_start = []
    for start in cell.starts or (None,):
        start_job = None if start is None else _build_job(start, 0, run, paths)
        jobs = [replace(_build_job(cell.raw, seed, run, paths), start=start_job) for seed in range(seeds)]
        missing = {source for job in jobs if not index.finished_run(job) for source in paths.missing(cell.raw)}
        if start is not None and start_job is not None and not index.finished_run(start_job):
            missing |= paths.missing(start)
        if not missing:
            return jobs, set()
        missing_per_start.append(missing)
    return [], min(missing_per_start, key=len)


def _build_job(raw: Raw, seed: int, run: Raw, paths: DataPaths) -> Job:
    return Job(merge_layers(paths.fill_in(raw), {"run": {**run, "seed": seed}}))
