"""Reproduces tables: reuses the runs in the store, runs the missing ones, and collects the numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from undergrowth.core import InputError, RunError
from undergrowth.reproduce.catalogue import find_table
from undergrowth.reproduce.data_paths import DataPaths
from undergrowth.reproduce.estimate import Estimate, Work, count_work, stored_speeds
from undergrowth.reproduce.orderings import MAX_SEEDS
from undergrowth.reproduce.parallel_runs import STACK, choose_parallel
from undergrowth.reproduce.results import TableResult
from undergrowth.reproduce.table import Place, Raw, Table
from undergrowth.reproduce.table_cells import build_cells, data_sections, data_source
from undergrowth.reproduce.table_plan import TablePlan, plan_table
from undergrowth.reproduce.weights import weights_source
from undergrowth.runs import Store
from undergrowth.runs.engine_builder import check_torch_device
from undergrowth.sweeps.jobs import Job, RunIndex
from undergrowth.sweeps.worker_pool import JobResults, OnProgress, WorkerPool

AUTO = "auto"


@dataclass(frozen=True)
class Workload:
    """The jobs of tables that are not finished, pretraining included, and how they will be executed."""

    jobs: tuple[Job, ...]
    parallel: int  # runs at a time
    estimate: Estimate | None = None
    tables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # name → keys of the jobs of no table before it


OnPlan = Callable[[Workload], None]
OnResult = Callable[[TableResult], None]
Seeds = Mapping[str, Mapping[Place, int]]  # table → cells that do not have the usual number of seeds


def _ignore(*_: Any) -> None:
    """The hook of who does not want to know."""


@dataclass(frozen=True)
class Results:
    """The results of tables by name, and the reasons why others have none."""

    tables: dict[str, TableResult] = field(default_factory=dict)
    failed: dict[str, InputError | RunError] = field(default_factory=dict)


@dataclass(frozen=True)
class Reproduction:
    """Tables and figures that are to be reproduced together: their runs share one pool of workers.

    Each cell and seed is a run in the store of `out`. A second call of `run` reuses finished runs and resumes
    interrupted ones. `paths` maps data sets to their files; cells whose data is missing are left out. `jobs` runs are
    executed at a time, of any of the tables; with "auto", as many as are worthwhile on this machine. After `minutes`,
    no run is started, and running ones stop when they finish their round; results then say which cells are not
    finished. `changes` are settings that all cells have instead of those of the tables, such as
    {"data": {"partition": "dirichlet:0.1"}}.
    """

    tables: Sequence[str]
    scale: str = "smoke"
    seeds: int | None = None
    paths: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"
    engine: str | None = None
    only: str | None = None
    out: str = "runs"
    jobs: int | str = 1
    minutes: float | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def published(self) -> dict[str, Table]:
        """The tables by name, each once."""
        return {table.name: table for table in map(find_table, self.tables)}

    def estimate(self) -> Workload:
        """The runs that are missing in the store and the time that they will take. Nothing is run."""
        self._check()
        with Store(self.out, create=True) as store:
            index, results = RunIndex(store), Results()
            return self._workload(self._plan(index, {}, results), store, index, estimate=True)

    def run(
        self,
        more_seeds: bool = False,
        on_plan: OnPlan = _ignore,
        on_progress: OnProgress = _ignore,
        on_result: OnResult = _ignore,
    ) -> Results:
        """Our numbers beside the published ones.

        With `more_seeds`, cells get four seeds if a gap that a conclusion rests on is below two standard errors.
        `on_plan` is called with the workload before the first job starts, `on_progress` with a job and the finished
        fraction of it, 0 at its start, and `on_result` with the result of each table once its last run has ended. A
        table that cannot be run is in `failed` of the result; if none can, its error is raised.
        """
        self._check()
        until = None if self.minutes is None else time.time() + 60 * self.minutes
        waiting: dict[str, TableResult] = {}  # results of tables whose cells get more seeds

        def on_first(result: TableResult) -> None:
            if more_seeds and result.unsettled and not result.unfinished:
                waiting[result.table.name] = result
            else:
                on_result(result)

        def on_more(result: TableResult) -> None:
            del waiting[result.table.name]
            on_result(result)

        with Store(self.out, create=True) as store:
            try:
                results = self._run(store, {}, until, on_plan, on_progress, on_first)
                if waiting:
                    seeds = {name: dict.fromkeys(result.unsettled, MAX_SEEDS) for name, result in waiting.items()}
                    more = self._run(store, seeds, until, on_plan, on_progress, on_more)
                    results = Results({**results.tables, **more.tables}, {**results.failed, **more.failed})
            finally:  # an interruption or a failure leaves results without the additional seeds
                for result in waiting.values():
                    on_result(result)
        return results

    def _run(
        self, store: Store, seeds: Seeds, until: float | None, on_plan: OnPlan, on_progress: OnProgress,
        on_result: OnResult,
    ) -> Results:  # fmt: skip
        """Run the tables; with `seeds`, only those that are in it."""
        index, results = RunIndex(store), Results()
        plans = self._plan(index, seeds, results)
        workload = self._workload(plans, store, index, estimate=self.scale != "smoke")
        on_plan(workload)
        open_plans = dict(plans)

        def report(job: Job, fraction: float) -> None:
            if workload.estimate:
                workload.estimate.report(job.key, fraction)
            on_progress(job, fraction)

        def complete(_: Job, finished: JobResults) -> None:
            """Collect the results of the tables whose last job has ended."""
            for name, plan in list(open_plans.items()):
                if all(key in finished for key in plan.jobs):
                    del open_plans[name]
                    try:
                        results.tables[name] = plan.result(store, finished)
                    except (InputError, RunError) as error:
                        results.failed[name] = error
                    else:
                        on_result(results.tables[name])

        jobs = [job for plan in plans.values() for job in plan.jobs.values()]
        WorkerPool(index, workload.parallel, report, until).run(jobs, complete)
        if not results.tables and results.failed:
            raise next(iter(results.failed.values()))
        return results

    def _plan(self, index: RunIndex, seeds: Seeds, results: Results) -> dict[str, TablePlan]:
        """The plan of each table. A table that cannot be run does not stop the others, unless there is no other."""
        paths, plans = DataPaths(self.paths), {}
        for name, table in self.published.items():
            if seeds and name not in seeds:
                continue
            usual = {} if self.seeds is None else dict.fromkeys(table.places, self.seeds)
            asked = {**usual, **seeds.get(name, {})}
            try:
                cells = build_cells(table, self.scale, self.only, dict(self.changes))
                plans[name] = plan_table(table, self.scale, cells, asked, self._run_settings, paths, index)
            except InputError as error:
                results.failed[name] = error
        if not plans:
            raise next(iter(results.failed.values()))
        return plans

    def _check(self) -> None:
        if self.seeds is not None and self.seeds < 1:
            raise InputError(f"seeds {self.seeds} must be at least 1")
        if self.seeds not in (None, 1) and all(table.columns_are_seeds for table in self.published.values()):
            raise InputError(
                f"seeds {self.seeds} has no effect on {', '.join(self.published)}: every column is one seed"
            )
        if self.jobs != AUTO and (not isinstance(self.jobs, int) or self.jobs < 1):
            raise InputError(f"jobs {self.jobs!r} must be {AUTO}, or a number of at least 1")
        if self.minutes is not None and not self.minutes > 0:
            raise InputError(f"minutes {self.minutes} must be above 0")
        check_torch_device(self.device)
        for table in self.published.values():
            table.scale(self.scale)

    @property
    def _run_settings(self) -> Raw:
        on_cpu = torch.device(self.device).type == "cpu"
        engine = self.engine or ("serial" if on_cpu else "vector")
        precision = {} if on_cpu else {"precision": "tf32"}
        # With a fixed number of clients at once, results do not depend on the memory that other runs leave free.
        stack = {"chunk": STACK} if engine in ("vector", "auto") and not on_cpu else {}
        return {"device": self.device, "engine": engine, **precision, **stack, "out": self.out}

    def _workload(self, plans: Mapping[str, TablePlan], store: Store, index: RunIndex, estimate: bool) -> Workload:
        jobs: dict[str, Job] = {}
        tables = {}
        for name, plan in plans.items():
            new = {key: job for key, job in plan.jobs.items() if key not in jobs and not index.finished_run(job)}
            jobs |= new
            tables[name] = tuple(new)
        work = _count_all(jobs) if estimate or self._shares_a_gpu else {}
        parallel = int(self.jobs) if self.jobs != AUTO else choose_parallel(self.device, len(jobs), work.values())
        speeds = stored_speeds(store, self.device)
        return Workload(tuple(jobs.values()), parallel, Estimate(work, speeds, parallel) if estimate else None, tables)

    @property
    def _shares_a_gpu(self) -> bool:
        return self.jobs == AUTO and torch.device(self.device).type == "cuda"


def reproduce_table(
    table: str,
    scale: str = "smoke",
    *,
    more_seeds: bool = False,
    on_plan: OnPlan = _ignore,
    on_progress: OnProgress = _ignore,
    **settings: Any,
) -> TableResult:
    """Our numbers for one table or figure. `settings` are those of `Reproduction`, and the rest as in its `run`."""
    task = Reproduction([table], scale, **settings)
    (result,) = task.run(more_seeds, on_plan, on_progress).tables.values()
    return result


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


def data_sources(table: Table, scale: str) -> set[str]:
    """The data sets and weights that a table needs at a scale, by the names that `--data-path` uses."""
    experiments = [raw for cell in build_cells(table, scale) for raw in cell.experiments]
    data = {data_source(section) for raw in experiments for section in data_sections(raw).values()}
    return data | {source for raw in experiments if (source := weights_source(raw))}


def count_runs(table: Table, scale: str) -> int:
    """The number of runs of a table at a scale, without pretraining."""
    distinct = {str(cell.experiments) for cell in build_cells(table, scale)}
    return table.scale(scale).seeds * len(distinct)
