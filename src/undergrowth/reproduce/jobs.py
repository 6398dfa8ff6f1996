"""The runs that a table needs, and the lookup of those that are already in the store."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from undergrowth.core import InputError
from undergrowth.reproduce.data_paths import DataPaths
from undergrowth.reproduce.table import Raw
from undergrowth.reproduce.table_cells import Cell, Pretraining, merge_layers
from undergrowth.runs import Store
from undergrowth.runs.config import Experiment, parse_experiment
from undergrowth.runs.result import MODEL_FILE
from undergrowth.runs.stored_experiment import fill, option_defaults, stored_experiment

_RUN_KEYS_THAT_CHANGE_RESULTS = ("seed", "precision", "evaluate_every")


@dataclass(frozen=True)
class Job:
    """One run. The final weights of `start` initialise its model, those of `device_start` the models of its ladder."""

    raw: Raw
    start: Job | None = None
    device_start: Job | None = None
    keep_head: bool = False  # of the model of `start`
    missing: frozenset[str] = frozenset()  # data sets that it needs and that are not on this machine

    @property
    def starts(self) -> tuple[Job, ...]:
        """The jobs that must be finished before this one can begin."""
        return tuple(job for job in (self.start, self.device_start) if job)

    @property
    def chain(self) -> list[Job]:
        """This job and all pretrainings that lead to it, in the order in which they can run."""
        return [*(each for start in self.starts for each in start.chain), self]

    def with_weights(self, weights: Path | None, device_weights: Path | None) -> Job:
        """The same job with files of pretrained weights instead of the pretraining jobs."""
        raw = self.raw
        if weights:
            skip = {} if self.keep_head else {"skip_head": True}
            raw = merge_layers(raw, {"model": {"weights": str(weights), **skip}})
        if device_weights:
            ladder = [{**_as_section(rung), "weights": str(device_weights)} for rung in raw["model"]["ladder"]]
            raw = merge_layers(raw, {"model": {"ladder": ladder}})
        return Job(raw)

    @cached_property
    def key(self) -> str:
        """Jobs with equal keys are the same run."""
        return experiment_key(parse_experiment(self.raw)) + "".join(job.key for job in self.starts)


def experiment_key(described: Experiment) -> str:
    """Everything in an experiment that changes its result: no file paths, torch device or engine."""
    raw = fill(described.model_dump(mode="json"), option_defaults(described))
    for section in ("data", "public"):
        if isinstance(raw.get(section), dict):
            raw[section].pop("path", None)
    raw["run"] = {key: raw["run"][key] for key in _RUN_KEYS_THAT_CHANGE_RESULTS}
    for model in (raw["model"], *raw["model"]["ladder"]):
        if isinstance(model, dict) and model.get("weights"):
            # The folder of the file is named after the run that trained the weights.
            model["weights"] = Path(model["weights"]).parent.name
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
        if job.starts:
            runs = [self.finished_run(start) if start else None for start in (job.start, job.device_start)]
            weights = [self.weights_file(run) if run else None for run in runs]
            if sum(file is not None for file in weights) < len(job.starts):
                return None
            return self.finished_run(job.with_weights(*weights))
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


def _as_section(named: Any) -> Raw:
    return {"name": named} if isinstance(named, str) else dict(named)


@dataclass(frozen=True)
class CellPlan:
    """The jobs of a cell, one per seed, and the pretraining that they start from; or the data that is missing."""

    cell: Cell
    jobs: tuple[Job, ...] = ()
    start: Pretraining | None = None
    missing: frozenset[str] = frozenset()


def plan_cell(cell: Cell, seeds: int, run: Raw, paths: DataPaths, index: RunIndex) -> CellPlan:
    """The plan of a cell with the seeds 0, 1, and so on.

    If the cell has alternative pretrainings, the first one whose data is available is used. Data is not needed for
    jobs that are already finished. Every seed has its own pretraining, which all rows of a table share.
    """
    missing_per_start: list[set[str]] = []
    for start in cell.starts or (None,):
        jobs = tuple(_build_job(cell, start, seed, run, paths) for seed in range(seeds))
        needed = {job.key: job for each in jobs for job in each.chain}.values()
        missing = {source for job in needed if not index.finished_run(job) for source in job.missing}
        if not missing:
            return CellPlan(cell, jobs, start)
        missing_per_start.append(missing)
    return CellPlan(cell, missing=frozenset(sorted(missing_per_start, key=len)[0]))


def _build_job(cell: Cell, start: Pretraining | None, seed: int, run: Raw, paths: DataPaths) -> Job:
    def build(raw: Raw, after: Pretraining | None, of_devices: Pretraining | None = None) -> Job:
        settings = {"run": {**run, "seed": seed + raw.get("run", {}).get("seed", 0)}}
        return Job(
            merge_layers(paths.fill_in(raw), settings),
            build(after.raw, after.after) if after else None,
            build(of_devices.raw, of_devices.after) if of_devices else None,
            bool(after and after.keep_head),
            frozenset(paths.missing(raw)),
        )

    return build(cell.raw, start, cell.device_start)
