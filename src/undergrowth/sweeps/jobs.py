"""Runs that are to be done, and the lookup of those that are already in the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from undergrowth.core import InputError
from undergrowth.report.run_record import flatten
from undergrowth.runs import Store
from undergrowth.runs.config import Experiment, parse_experiment
from undergrowth.runs.method_builder import build_method
from undergrowth.runs.model_builder import with_model_settings
from undergrowth.runs.start_phase import with_first_method
from undergrowth.runs.stop_section import CALLBACK
from undergrowth.runs.store import MODEL_FILE
from undergrowth.runs.stored_experiment import fill, option_defaults, stored_experiment
from undergrowth.sweeps.layers import Raw, as_section, merge_layers

_RUN_KEYS_THAT_CHANGE_RESULTS = ("seed", "precision")
_INTERVAL = "run.evaluate_every"  # changes results as well, but a run stores the number that `auto` stands for


@dataclass(frozen=True)
class Job:
    """One run. The final weights of `start` initialise its model, those of `device_start` the models of its ladder."""

    raw: Raw
    start: Job | None = None
    device_start: Job | None = None
    keep_head: bool = False  # of the model of `start`
    missing: frozenset[str] = frozenset()  # data sets that it needs and that are not on this machine
    sweep: tuple[str, str] | None = None  # names of the sweep and the variant that it belongs to
    exact: tuple[str, ...] = ()  # settings that are not part of the key of an experiment and tell this job from others

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
            ladder = [{**as_section("model", rung), "weights": str(device_weights)} for rung in raw["model"]["ladder"]]
            raw = merge_layers(raw, {"model": {"ladder": ladder}})
        return replace(self, raw=raw, start=None, device_start=None)

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment as a run stores it: with what its method adds."""
        experiment = parse_experiment(self.raw)
        method = build_method(experiment.method.name, experiment.method.options)
        return with_model_settings(with_first_method(experiment, method), method)

    @cached_property
    def key(self) -> str:
        """Jobs with equal keys are the same run."""
        exact = json.dumps(_values_at(self.experiment, (_INTERVAL, *self.exact)))
        return experiment_key(self.experiment) + exact + "".join(job.key for job in self.starts)

    def is_run_by(self, experiment: Experiment) -> bool:
        """Whether an experiment with the same key has the values of this job in `exact`, and its interval.

        `auto` is any engine, and any interval.
        """
        paths = (_INTERVAL, *self.exact)
        wanted, found = (_values_at(each, paths) for each in (self.experiment, experiment))
        return all(wanted[path] in ("auto", found[path]) for path in paths)


def experiment_key(experiment: Experiment) -> str:
    """Everything in an experiment that changes its result: no folders, torch device or engine."""
    raw = fill(experiment.model_dump(mode="json"), option_defaults(experiment))
    for section in ("data", "public"):
        if isinstance(raw.get(section), dict):
            raw[section].pop("path", None)
    raw["run"] = {key: raw["run"][key] for key in _RUN_KEYS_THAT_CHANGE_RESULTS}
    if raw["start"]["weights"]:
        raw["start"]["weights"] = Path(raw["start"]["weights"]).name
    for model in (raw["model"], *raw["model"]["ladder"]):
        if isinstance(model, dict) and model.get("weights"):
            # The folder of the file is named after the run that trained the weights.
            model["weights"] = Path(model["weights"]).parent.name
    return json.dumps(raw, sort_keys=True)


def _values_at(experiment: Experiment, paths: tuple[str, ...]) -> dict[str, Any]:
    flat = flatten(experiment.model_dump(mode="json"))
    return {path: flat.get(path) for path in paths}


class StoredRun(NamedTuple):
    """What decides whether a run in the store is the run of a job."""

    id: str
    done: bool
    experiment: Experiment
    kept: Mapping[str, Any]  # what the store has about the experiment, such as the fingerprint of its data


class RunIndex:
    """The runs of a store by the key of their experiment.

    `has_same_inputs` says whether a stored run began with the data and source files that its experiment names now.
    """

    def __init__(self, store: Store, has_same_inputs: Callable[[StoredRun], bool] = lambda _: True) -> None:
        self.folder = store.folder
        self.has_same_inputs = has_same_inputs
        self._runs: dict[str, list[StoredRun]] = {}
        for run in store.ids():
            try:
                row = store.run(run)
                experiment = stored_experiment(row)
            except InputError:  # written by a version with other settings, or damaged
                continue
            if any(row["experiment"]["objects"].values()) or row["summary"].get("stopped") == CALLBACK:
                continue
            runs = self._runs.setdefault(experiment_key(experiment), [])
            runs.append(StoredRun(row["id"], row["status"] == "done", experiment, row["experiment"]))

    def finished_run(self, job: Job) -> str | None:
        """The id of a finished run of `job`."""
        runs = (run for run in self._runs_of(job) if run.done)
        return next((run.id for run in runs if self.has_same_inputs(run)), None)

    def unfinished_run(self, job: Job) -> str | None:
        """The id of the newest unfinished run of `job` that may be resumed: see `_must_stay`."""
        wanted = _must_stay(job.experiment)
        runs = (run for run in reversed(self._runs_of(job)) if not run.done and _must_stay(run.experiment) == wanted)
        return next((run.id for run in runs if self.has_same_inputs(run)), None)

    def _runs_of(self, job: Job) -> list[StoredRun]:
        """The runs of `job`; none if a pretraining of it is not finished."""
        if job.starts:
            runs = [self.finished_run(start) if start else None for start in (job.start, job.device_start)]
            weights = [self.weights_file(run) if run else None for run in runs]
            if sum(file is not None for file in weights) < len(job.starts):
                return []
            job = job.with_weights(*weights)
        return [run for run in self._runs.get(experiment_key(job.experiment), ()) if job.is_run_by(run.experiment)]

    def weights_file(self, run: str) -> Path:
        return self.folder / run / MODEL_FILE


def _must_stay(experiment: Experiment) -> tuple[Any, ...]:
    """What the rest of an unfinished run takes from its start: torch device, files, and whether refused rounds end it.

    A run that ended with the advice to set `run.if_all_refused` begins again when the user has set it.
    """
    raw = experiment.model_dump()
    paths = ((raw.get(section) or {}).get("path") for section in ("data", "public"))
    return (raw["run"]["device"], raw["run"]["if_all_refused"], raw["start"]["weights"], *paths)
