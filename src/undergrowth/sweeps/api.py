"""The function that Python users call: `sweep`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

from undergrowth.core import InputError, RunWarning
from undergrowth.report.run_record import check_accuracy_target, check_metric_target, load_records
from undergrowth.runs import Store
from undergrowth.runs.progress import is_terminal
from undergrowth.sweeps.comparison import VariantRuns
from undergrowth.sweeps.jobs import Job, RunIndex
from undergrowth.sweeps.planned_sweep import PlannedSweep, plan_sweep
from undergrowth.sweeps.progress import show_progress
from undergrowth.sweeps.result import SweepResult
from undergrowth.sweeps.same_inputs import SameInputs
from undergrowth.sweeps.worker_pool import JobResults, WorkerPool


def sweep(
    experiment: str | PathLike[str] | Mapping[str, Any],
    *,
    jobs: int = 1,
    out: str | PathLike[str] | None = None,
    accuracy: float | None = None,
    metric: float | None = None,
    progress: bool | None = None,
) -> SweepResult:
    """Runs every combination of the choices in an experiment, and returns all results.

    `experiment` is an experiment file or the dictionary that such a file holds. A list is a choice: {"run": {"seed":
    [0, 1, 2]}}. The key `sweep` holds named variants. Runs that are finished in the folder `out` are not repeated,
    unfinished ones are resumed. `jobs` runs are executed at a time, each in a process. `accuracy`: the accuracy for the
    rounds and costs until it is reached; `metric`: the same for the main metric of another task. `progress`: a progress
    bar on standard error; by default if that is a terminal. A run that fails does not stop the others; a warning says
    how many failed, and `failed` of the result says why.
    """
    planned = plan_sweep(experiment, out)
    with show_progress(planned, is_terminal() if progress is None else progress) as on_progress:
        result = run_sweep(planned, jobs, accuracy, on_progress, metric)
    if result.failed:
        name, reason = next(iter(result.failed.items()))
        total = len(result.failed) + len(result.runs)
        warnings.warn(f"{len(result.failed)} of {total} runs failed; {name}: {reason}", RunWarning, stacklevel=2)
    return result


def run_sweep(
    planned: PlannedSweep,
    jobs: int,
    accuracy: float | None,
    on_progress: Callable[[Job, float], None],
    metric: float | None = None,
) -> SweepResult:
    """Does the runs that are not finished yet. `on_progress` is called with a job and the finished fraction of it."""
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise InputError(f"jobs {jobs!r} must be a whole number of at least 1")
    is_number = isinstance(accuracy, int | float) and not isinstance(accuracy, bool)
    if accuracy is not None and not (is_number and 0 < accuracy <= 1):
        raise InputError(f"accuracy {accuracy!r} must be above 0 and at most 1")
    check_metric_target(metric)
    with Store(planned.folder, create=True) as store:
        index = RunIndex(store, SameInputs())
        every = [job for each in planned.jobs.values() for job in each.values()]
        store.forget_sweep(planned.name)

        def on_end(job: Job, results: JobResults) -> None:
            if job.sweep and job.key in results.runs:  # also a finished run that the sweep reuses
                store.add_to_sweep(results.runs[job.key], *job.sweep)

        finished = WorkerPool(index, min(jobs, len(every)), on_progress).run(every, on_end)
        variants = [_collect(store, name, each, finished) for name, each in planned.jobs.items()]
    given = accuracy if metric is None else metric
    result = SweepResult(variants, store.folder, planned.target if given is None else given)
    check_accuracy_target(accuracy, result.metric)
    return result


def _collect(store: Store, name: str, jobs: Mapping[int, Job], finished: JobResults) -> VariantRuns:
    records = {
        seed: load_records(store, [finished.runs[job.key]])[0] for seed, job in jobs.items() if job.key in finished.runs
    }
    failed = {seed: finished.failed[job.key] for seed, job in jobs.items() if job.key in finished.failed}
    return VariantRuns(name, records, failed)
