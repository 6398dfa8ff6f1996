"""The plan of a table: its cells with their jobs, and the result that finished jobs give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from undergrowth.core import InputError
from undergrowth.reproduce.data_paths import DataPaths, how_to_get
from undergrowth.reproduce.jobs import CellPlan, plan_cell
from undergrowth.reproduce.metrics import mean_curve, measure, progress
from undergrowth.reproduce.results import CellResult, TableResult, published_figure, run_cost
from undergrowth.reproduce.table import Place, Raw, Table
from undergrowth.reproduce.table_cells import Cell
from undergrowth.runs import Store
from undergrowth.sweeps.jobs import Job, RunIndex
from undergrowth.sweeps.worker_pool import JobResults


@dataclass(frozen=True)
class TablePlan:
    """A table at a scale, with the jobs of its cells."""

    table: Table
    scale: str
    cells: tuple[CellPlan, ...]

    @cached_property
    def jobs(self) -> dict[str, Job]:
        """All jobs by key, pretrainings included."""
        return {job.key: job for cell in self.cells for each in cell.jobs for job in each.chain}

    def result(self, store: Store, finished: JobResults) -> TableResult:
        """The result of the jobs that are finished."""
        failed = {plan.cell.name: reason for plan in self.cells if (reason := _failure(plan.jobs, finished))}
        if finished.wrong_input & self.jobs.keys() and not finished.runs.keys() & self.jobs.keys():
            raise InputError(next(iter(failed.values())))
        return TableResult(
            self.table,
            self.scale,
            tuple(self._cell_result(store, plan, finished) for plan in self.cells if plan.jobs),
            left_out={
                plan.cell.name: f"missing data: {', '.join(sorted(plan.missing))}"
                for plan in self.cells
                if plan.missing
            },
            failed=failed,
            unfinished={plan.cell.name: text for plan in self.cells if (text := _unfinished(store, plan, finished))},
            missing=_missing(self.cells),
        )

    def _cell_result(self, store: Store, plan: CellPlan, finished: JobResults) -> CellResult:
        cell = plan.cell
        by_seed = {seed: finished.runs[job.key] for seed, job in enumerate(plan.jobs) if job.key in finished.runs}
        runs = tuple(by_seed.values())
        return CellResult(
            cell,
            values=tuple(measure(store, run, cell.metric) for run in runs),
            runs=runs,
            costs=tuple(run_cost(store, run) for run in runs),
            seeds=tuple(by_seed),
            start=plan.start,
            published=published_figure(self.table, cell, plan.start),
            curve=mean_curve(store, runs, cell.metric),
        )


def plan_table(
    table: Table, scale: str, cells: Sequence[Cell], seeds: Mapping[Place, int], run: Raw, paths: DataPaths,
    index: RunIndex,
) -> TablePlan:  # fmt: skip
    """The plan of `cells`. `seeds`: the number of seeds of cells that do not have the number of the scale.

    A cell of a table whose columns are seeds always has one.
    """
    usual = table.scale(scale).seeds
    counts = {cell.place: 1 if table.columns_are_seeds else seeds.get(cell.place, usual) for cell in cells}
    plans = tuple(plan_cell(cell, counts[cell.place], run, paths, index) for cell in cells)
    if not any(plan.jobs for plan in plans):
        needed = [f"{source} ({how})" for source, how in _missing(plans).items()]
        raise InputError(f"table {table.name} needs missing data: {'; '.join(needed)}")
    return TablePlan(table, scale, plans)


def _failure(jobs: Sequence[Job], finished: JobResults) -> str:
    """The distinct reasons for which jobs of a cell failed; empty if none did."""
    return "; ".join(dict.fromkeys(finished.failed[job.key] for job in jobs if job.key in finished.failed))


def _unfinished(store: Store, plan: CellPlan, finished: JobResults) -> str:
    """How many seeds of a cell the time limit left unfinished, and how far they got; empty if all are finished."""
    jobs = {job.experiment.run.seed: job for job in plan.jobs if job.key in finished.unfinished}
    if not jobs:
        return ""
    index = RunIndex(store)
    begun = {seed: run for seed, job in jobs.items() if (run := index.unfinished_run(job))}
    reached = [f"seed {seed}: {progress(store, run, plan.cell.metric)}" for seed, run in begun.items()]
    return "; ".join([f"{len(jobs)} of {len(plan.jobs)} seeds", *reached])


def _missing(plans: Sequence[CellPlan]) -> dict[str, str]:
    """The data sets and weights that cells lack, and how to get them."""
    return {source: how_to_get(source) for source in sorted({source for plan in plans for source in plan.missing})}
