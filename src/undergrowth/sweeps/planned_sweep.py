"""A sweep before its first run: its variants and jobs, all of them validated."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import Any

from undergrowth.core import InputError
from undergrowth.data import Population
from undergrowth.engines import restore_torch_settings
from undergrowth.report.run_record import flatten
from undergrowth.runs import experiment_file
from undergrowth.runs.config import Experiment
from undergrowth.runs.federation import Federation
from undergrowth.runs.federation_builder import federate
from undergrowth.runs.preview import check_deadline
from undergrowth.runs.start_phase import prepare_phase
from undergrowth.sweeps.grid import Variant, expand
from undergrowth.sweeps.jobs import Job
from undergrowth.sweeps.layers import merge_layers

# Files are not part of the key of an experiment, but two variants may differ in nothing else.
_FILES = ("data.path", "model.weights", "public.path", "start.weights")
EXAMPLE = '{"run": {"seed": [0, 1]}}'
_WITHOUT_EFFECT = ("run.seed", "run.out")


@dataclass(frozen=True)
class PlannedSweep:
    """The jobs of each variant by their seeds, the folder of the runs, and the name of the sweep in lists of runs."""

    jobs: Mapping[str, Mapping[int, Job]]
    folder: str
    name: str

    @property
    def labels(self) -> dict[str, str]:
        """What a user reads about each job, by its key: the variant, and the seed if there are several."""
        return {
            job.key: f"{variant}, seed {seed}" if len(jobs) > 1 else variant
            for variant, jobs in self.jobs.items()
            for seed, job in jobs.items()
        }

    @property
    def target(self) -> float | None:
        """The main metric, or the accuracy, at which all runs stop, if that is the same for all."""
        stops = [job.experiment.stop for jobs in self.jobs.values() for job in jobs.values()]
        limits = {stop.accuracy if stop.metric is None else stop.metric for stop in stops}
        return limits.pop() if len(limits) == 1 else None


@restore_torch_settings()
def plan_sweep(
    source: str | PathLike[str] | Mapping[str, Any], out: str | PathLike[str] | None = None, name: str | None = None
) -> PlannedSweep:
    """The sweep in a file or a dictionary. `out` replaces the folder of the runs.

    `name`: of the sweep; by default that of the file, or a short hash of the dictionary.

    Raises `InputError` for the first problem of a variant, with the name of the variant.
    """
    if not isinstance(source, str | PathLike | Mapping):
        raise InputError(f"experiment {source!r} must be an experiment file or a dictionary, such as {EXAMPLE}")
    if isinstance(source, Mapping):
        raw = dict(source)
        name = name or f"sweep-{sha256(repr(raw).encode()).hexdigest()[:4]}"
    else:
        raw, name = experiment_file.read(Path(source)), name or Path(source).stem
    if out is not None:
        raw = merge_layers(raw, {"run": {"out": str(out)}})
    variants = expand(raw)
    exact = (*_FILES, *_varied_run_settings(variants))
    build = _FederationBuilder()
    jobs = {variant.name: _check(variant, name, exact, len(variants) > 1, build) for variant in variants}
    folders = {job.experiment.run.out for each in jobs.values() for job in each.values()}
    if len(folders) > 1:
        raise InputError(f"run.out {sorted(folders)}: all runs of a sweep are in one folder; write one")
    first: dict[str, str] = {}
    for variant, each in jobs.items():
        other = first.setdefault(next(iter(each.values())).key, variant)
        if other != variant:
            raise InputError(f"variants '{other}' and '{variant}' are the same experiment; leave one of them out")
    return PlannedSweep(jobs, folders.pop(), name)


def _varied_run_settings(variants: Sequence[Variant]) -> list[str]:
    """The settings of the section `run` in which the runs differ, such as the engine."""
    flat = [flatten(raw) for variant in variants for raw in variant.raws.values()]
    paths = {path for each in flat for path in each if path.startswith("run.") and path not in _WITHOUT_EFFECT}
    return sorted(path for path in paths if any(each.get(path) != flat[0].get(path) for each in flat))


class _FederationBuilder:
    """Builds federations one after the other. The data is built again only if it is not that of the one before."""

    def __init__(self) -> None:
        self._key = ""
        self._data: Population | None = None

    def __call__(self, experiment: Experiment) -> Federation:
        sections = experiment.model_dump(mode="json", include={"data", "public", "stream", "task"})
        # The name of the model may decide how texts are divided into tokens.
        key = json.dumps([sections, experiment.model.name, experiment.run.seed])
        if key == self._key:
            return federate(experiment.with_population(), data=self._data)
        federation = federate(experiment)
        self._key, self._data = key, federation.device_data
        return federation


def _check(
    variant: Variant, sweep: str, exact: tuple[str, ...], named: bool, build: _FederationBuilder
) -> dict[int, Job]:
    """The jobs of a variant. The experiments of all seeds are parsed; that of the first is built as a run builds it."""
    try:
        jobs = [Job(raw, sweep=(sweep, variant.name), exact=exact) for raw in variant.raws.values()]
        seeds = [job.experiment.run.seed for job in jobs]
        experiment = jobs[0].experiment
        federation = build(experiment)
        prepare_phase(experiment, federation, None)
        if experiment.fleet.deadline is not None:
            check_deadline(federation)
    except InputError as error:
        raise InputError(f"variant '{variant.name}': {error}" if named else str(error)) from None
    return dict(zip(seeds, jobs, strict=True))
