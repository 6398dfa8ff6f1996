"""Runs that are to be done, and the lookup of those that are already in the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from undergrowth.core import InputError
from undergrowth.report.run_record import flatten
from undergrowth.runs import Store
from undergrowth.runs.config import Experiment, parse_experiment
from undergrowth.runs.result import MODEL_FILE
from undergrowth.runs.stored_experiment import fill, option_defaults, stored_experiment
from undergrowth.sweeps.layers import Raw, merge_layers

_RUN_KEYS_THAT_CHANGE_RESULTS = ("seed", "precision", "evaluate_every")


@dataclass(frozen=True)
class Job:
    """One run. With `start`, the model is initialised with the final weights of that pretraining job."""

    raw: Raw
    start: Job | None = None
    exact: tuple[str, ...] = ()  # settings that are not part of the key of an experiment and tell this job from others

    def with_weights(self, weights: Path) -> Job:
        """The same job with the file of the pretrained weights instead of the pretraining job."""
        return Job(merge_layers(self.raw, {"model": {"weights": str(weights), "skip_head": True}}))

    @cached_property
    def experiment(self) -> Experiment:
        return parse_experiment(self.raw)

    @cached_property
    def key(self) -> str:
        """Jobs with equal keys are the same run."""
        exact = json.dumps(_values_at(self.experiment, self.exact)) if self.exact else ""
        return experiment_key(self.experiment) + exact + (self.start.key if self.start else "")

    def is_run_by(self, described: Experiment) -> bool:
        """Whether an experiment with the same key has the values of this job in `exact`. `auto` is any engine."""
        wanted, found = (_values_at(each, self.exact) for each in (self.experiment, described))
        return all(wanted[path] in ("auto", found[path]) for path in self.exact)


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


def _values_at(described: Experiment, paths: tuple[str, ...]) -> dict[str, Any]:
    flat = flatten(described.model_dump(mode="json"))
    return {path: flat.get(path) for path in paths}


class StoredRun(NamedTuple):
    id: str
    done: bool
    described: Experiment
    fingerprint: Mapping[str, Any] | None  # of its data


class RunIndex:
    """The runs of a store by the key of their experiment.

    `has_same_data` says whether the data that a stored run began with is the data that its experiment names now.
    """

    def __init__(self, store: Store, has_same_data: Callable[[StoredRun], bool] = lambda _: True) -> None:
        self.folder = store.folder
        self.has_same_data = has_same_data
        self._runs: dict[str, list[StoredRun]] = {}
        for row in store.runs():
            if any(row["experiment"]["objects"].values()):
                continue
            try:
                described = stored_experiment(row)
            except InputError:  # written by a version with other settings
                continue
            runs = self._runs.setdefault(experiment_key(described), [])
            runs.append(StoredRun(row["id"], row["status"] == "done", described, row["experiment"].get("fingerprint")))

    def finished_run(self, job: Job) -> str | None:
        """The id of a finished run of `job`."""
        if job.start:
            start = self.finished_run(job.start)
            return self.finished_run(job.with_weights(self.weights_file(start))) if start else None
        return next((run.id for run in self._runs_of(job, done=True)), None)

    def unfinished_run(self, job: Job) -> str | None:
        """The id of the newest unfinished run of `job` with the same torch device and files, to be resumed."""
        wanted = _location(job.experiment)
        return next((run.id for run in self._runs_of(job, done=False) if _location(run.described) == wanted), None)

    def _runs_of(self, job: Job, done: bool) -> Iterator[StoredRun]:
        """The runs of `job` that are finished, or those that are not, the newest first."""
        for run in reversed(self._runs.get(experiment_key(job.experiment), [])):
            if run.done == done and job.is_run_by(run.described) and self.has_same_data(run):
                yield run

    def weights_file(self, run: str) -> Path:
        return self.folder / run / MODEL_FILE


def _location(described: Experiment) -> tuple[Any, ...]:
    raw = described.model_dump()
    return (raw["run"]["device"], *((raw.get(section) or {}).get("path") for section in ("data", "public")))
