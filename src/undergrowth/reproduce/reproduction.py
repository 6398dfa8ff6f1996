"""Reproduces a table: reuses the runs in the store, runs the missing ones, and collects the numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property

import torch

from undergrowth.core import InputError
from undergrowth.data import describe
from undergrowth.reproduce.catalogue import find_table
from undergrowth.reproduce.data_paths import DataPaths
from undergrowth.reproduce.estimate import Estimate, Work, count_work, stored_speeds
from undergrowth.reproduce.jobs import CellPlan, plan_cell
from undergrowth.reproduce.metrics import mean_curve, measure
from undergrowth.reproduce.orderings import MAX_SEEDS
from undergrowth.reproduce.parallel_runs import STACK, choose_parallel
from undergrowth.reproduce.results import CellResult, TableResult, published_figure, run_cost
from undergrowth.reproduce.table import Place, Raw, Table
from undergrowth.reproduce.table_cells import build_cells, data_sections, data_source
from undergrowth.runs import Store
from undergrowth.sweeps.jobs import Job, RunIndex
from undergrowth.sweeps.worker_pool import JobResults, WorkerPool

AUTO = "auto"


@dataclass(frozen=True)
class Workload:
    """The jobs of a table that are not finished, pretraining included, and how they will be executed."""

    jobs: tuple[Job, ...]
    parallel: int  # runs at a time
    estimate: Estimate | None = None


OnPlan = Callable[[Workload], None]
OnProgress = Callable[[Job, float], None]


@dataclass(frozen=True)
class Reproduction:
    """A table or figure that is to be reproduced. See `reproduce_table` for the settings."""

    table: str
    scale: str = "smoke"
    seeds: int | None = None
    paths: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"
    engine: str | None = None
    only: str | None = None
    out: str = "runs"
    jobs: int | str = 1

    @cached_property
    def published(self) -> Table:
        return find_table(self.table)

    def estimate(self) -> Workload:
        """The runs that are missing in the store and the time that they will take. Nothing is run."""
        with closing(Store(self.out, create=True)) as store:
            index = RunIndex(store)
            return self._workload(self._plan(index), store, index, estimate=True)

    def run(self, more_seeds: bool, on_plan: OnPlan, on_progress: OnProgress) -> TableResult:
        with closing(Store(self.out, create=True)) as store:
            result = self._run(store, {}, on_plan, on_progress)
            if more_seeds and result.unsettled:
                result = self._run(store, dict.fromkeys(result.unsettled, MAX_SEEDS), on_plan, on_progress)
        return result

    def _run(self, store: Store, seeds: Mapping[Place, int], on_plan: OnPlan, on_progress: OnProgress) -> TableResult:
        index = RunIndex(store)
        plans = self._plan(index, seeds)
        workload = self._workload(plans, store, index, estimate=self.scale != "smoke")
        on_plan(workload)

        def report(job: Job, fraction: float) -> None:
            if workload.estimate:
                workload.estimate.report(job.key, fraction)
            on_progress(job, fraction)

        finished = WorkerPool(index, workload.parallel, report).run([job for plan in plans for job in plan.jobs])
        results = tuple(self._result(store, plan, finished) for plan in plans if plan.jobs)
        failed = {plan.cell.name: reason for plan in plans if (reason := _failure(plan.jobs, finished))}
        if finished.wrong_input and not finished.runs:
            raise InputError(next(iter(failed.values())))
        left_out = {
            plan.cell.name: f"missing data: {', '.join(sorted(plan.missing))}" for plan in plans if plan.missing
        }
        return TableResult(self.published, self.scale, results, left_out, failed)

    def _plan(self, index: RunIndex, seeds: Mapping[Place, int] | None = None) -> list[CellPlan]:
        """The plan of each cell. `seeds`: the number of seeds of cells that do not have the usual one."""
        if self.seeds is not None and self.seeds < 1:
            raise InputError(f"seeds {self.seeds} must be at least 1")
        if self.jobs != AUTO and (not isinstance(self.jobs, int) or self.jobs < 1):
            raise InputError(f"jobs {self.jobs!r} must be {AUTO}, or a number of at least 1")
        usual = self.seeds or self.published.scale(self.scale).seeds
        paths, run = DataPaths(self.paths), self._run_settings
        plans = [
            plan_cell(cell, max(usual, (seeds or {}).get(cell.place, 0)), run, paths, index)
            for cell in build_cells(self.published, self.scale, self.only)
        ]
        if not any(plan.jobs for plan in plans):
            needed = sorted({source for plan in plans for source in plan.missing})
            advice = "; ".join(map(_data_advice, needed))
            raise InputError(f"table {self.published.name} needs missing data: {advice}")
        return plans

    @property
    def _run_settings(self) -> Raw:
        on_cpu = torch.device(self.device).type == "cpu"
        engine = self.engine or ("serial" if on_cpu else "vector")
        precision = {} if on_cpu else {"precision": "tf32"}
        # With a fixed number of clients at once, results do not depend on the memory that other runs leave free.
        stack = {"chunk": STACK} if engine == "vector" and not on_cpu else {}
        return {"device": self.device, "engine": engine, **precision, **stack, "out": self.out}

    def _workload(self, plans: Sequence[CellPlan], store: Store, index: RunIndex, estimate: bool) -> Workload:
        every = {job.key: job for plan in plans for each in plan.jobs for job in each.chain}
        jobs = {key: job for key, job in every.items() if not index.finished_run(job)}
        work = _count_all(jobs) if estimate or self._shares_a_gpu else {}
        parallel = int(self.jobs) if self.jobs != AUTO else choose_parallel(self.device, len(jobs), work.values())
        speeds = stored_speeds(store, self.device)
        return Workload(tuple(jobs.values()), parallel, Estimate(work, speeds, parallel) if estimate else None)

    @property
    def _shares_a_gpu(self) -> bool:
        return self.jobs == AUTO and torch.device(self.device).type == "cuda"

    def _result(self, store: Store, plan: CellPlan, finished: JobResults) -> CellResult:
        cell = plan.cell
        by_seed = {seed: finished.runs[job.key] for seed, job in enumerate(plan.jobs) if job.key in finished.runs}
        runs = tuple(by_seed.values())
        return CellResult(
            cell,
            tuple(measure(store, run, cell.metric) for run in runs),
            runs,
            tuple(run_cost(store, run) for run in runs),
            tuple(by_seed),
            plan.start,
            published_figure(self.published, cell, plan.start),
            mean_curve(store, runs, cell.metric),
        )


def reproduce_table(
    table: str,
    scale: str = "smoke",
    *,
    seeds: int | None = None,
    more_seeds: bool = False,
    paths: Mapping[str, str] | None = None,
    device: str = "cpu",
    engine: str | None = None,
    only: str | None = None,
    out: str = "runs",
    jobs: int | str = 1,
    on_plan: OnPlan = lambda _: None,
    on_progress: OnProgress = lambda *_: None,
) -> TableResult:
    """Our numbers for the table or figure with the name `table`, beside the published ones.

    Each cell and seed is a run in the store of `out`. A second call reuses finished runs and resumes interrupted
    ones. `paths` maps data sets to their files; cells whose data is missing are left out. `jobs` runs are executed at
    a time; with "auto", as many as are worthwhile on this machine. With `more_seeds`, cells get four seeds if a gap
    that a conclusion rests on is below two standard errors. `on_plan` is called with the workload before the first job
    starts, `on_progress` with a job and the finished fraction of it, 0 at its start.
    """
    task = Reproduction(table, scale, seeds, paths or {}, device, engine, only, out, jobs)
    return task.run(more_seeds, on_plan, on_progress)


def _count_all(jobs: Mapping[str, Job]) -> dict[str, Work]:
    """The work of every job. Jobs that differ only in their seeds have about the same, and one of them is counted."""
    counted: dict[str, Work] = {}
    work = {}
    for key, job in jobs.items():
        kind = repr({**job.raw, "run": None})
        if kind not in counted:
            counted[kind] = count_work(job.raw)
        work[key] = counted[kind]
    return work


def _failure(jobs: Sequence[Job], finished: JobResults) -> str:
    """The distinct reasons for which jobs of a cell failed; empty if none did."""
    return "; ".join(dict.fromkeys(finished.failed[job.key] for job in jobs if job.key in finished.failed))


def data_sources(table: Table, scale: str) -> set[str]:
    """The data sets that a table needs at a scale, by the names that `--data-path` uses."""
    experiments = [raw for cell in build_cells(table, scale) for raw in cell.experiments]
    return {data_source(section) for raw in experiments for section in data_sections(raw).values()}


def count_runs(table: Table, scale: str) -> int:
    """The number of runs of a table at a scale, without pretraining."""
    distinct = {str(cell.experiments) for cell in build_cells(table, scale)}
    return table.scale(scale).seeds * len(distinct)


def _data_advice(source: str) -> str:
    """How to get a missing data set."""
    try:
        how = describe(source).how_to_get
    except InputError:
        how = "write it as an .npz file"
    return f"{source} (give --data-path {source}=FOLDER; {how})"
