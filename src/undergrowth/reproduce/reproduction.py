"""Reproduces a table: reuses the runs in the store, runs the missing ones, and collects the figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing

from undergrowth.core import InputError
from undergrowth.data import describe
from undergrowth.reproduce.data_paths import DataPaths
from undergrowth.reproduce.jobs import build_jobs
from undergrowth.reproduce.results import CellResult, TableResult, measure, run_cost
from undergrowth.reproduce.table import Raw, Table, find_table
from undergrowth.reproduce.table_cells import Cell, build_cells, data_sections, data_source
from undergrowth.runs import Store
from undergrowth.sweeps.jobs import Job, RunIndex
from undergrowth.sweeps.worker_pool import JobResults, WorkerPool


def reproduce_table(
    table: str,
    scale: str = "smoke",
    *,
    seeds: int | None = None,
    paths: Mapping[str, str] | None = None,
    device: str = "cpu",
    engine: str | None = None,
    only: str | None = None,
    out: str = "runs",
    jobs: int = 1,
    on_plan: Callable[[list[Job]], None] = lambda _: None,
    on_progress: Callable[[Job, float], None] = lambda *_: None,
) -> TableResult:
    """Our figures for the table with number `table`, beside the published ones.

    Each cell and seed is a run in the store of `out`. A second call reuses finished runs and resumes interrupted
    ones. `paths` maps data sets to their files; cells whose data is missing are left out. `jobs` runs are executed at
    a time. `on_plan` is called with all jobs before the first one starts, `on_progress` with a job and the finished
    fraction of it.
    """
    published = find_table(table)
    if jobs < 1 or (seeds is not None and seeds < 1):
        raise InputError(f"{'jobs' if jobs < 1 else 'seeds'} must be at least 1")
    cells = build_cells(published, scale, only)
    data_paths = DataPaths(paths or {})
    defaults = {"engine": "serial"} if device == "cpu" else {"engine": "vector", "precision": "tf32"}
    run = {"device": device, **defaults, **({"engine": engine} if engine else {}), "out": out}
    with closing(Store(out, create=True)) as store:
        index = RunIndex(store)
        cell_jobs, missing = _plan_jobs(cells, seeds or published.scale(scale).seeds, run, data_paths, index)
        if not cell_jobs:
            needed = sorted({source for sources in missing.values() for source in sources})
            raise InputError(f"table {published.name} needs missing data: {'; '.join(map(_data_advice, needed))}")
        planned = list({job.key: job for each in cell_jobs.values() for job in each}.values())
        on_plan(planned)
        finished = WorkerPool(index, jobs, on_progress).run(planned)
        results = tuple(_cell_result(store, cell, of_cell, finished) for cell, of_cell in cell_jobs.items())
    failed = {cell.name: reason for cell, of_cell in cell_jobs.items() if (reason := _failure(of_cell, finished))}
    if finished.wrong_input and not finished.runs:
        raise InputError(next(iter(failed.values())))
    left_out = {name: f"missing data: {', '.join(sorted(sources))}" for name, sources in missing.items()}
    return TableResult(published, scale, results, left_out, failed)


def _plan_jobs(
    cells: list[Cell], seeds: int, run: Raw, paths: DataPaths, index: RunIndex
) -> tuple[dict[Cell, list[Job]], dict[str, set[str]]]:
    """The jobs of each cell that can run, and the missing data sets of the others by the names of their cells."""
    cell_jobs, missing_data = {}, {}
    for cell in cells:
        jobs, missing = build_jobs(cell, seeds, run, paths, index)
        if jobs:
            cell_jobs[cell] = jobs
        else:
            missing_data[cell.name] = missing
    return cell_jobs, missing_data


def _cell_result(store: Store, cell: Cell, jobs: list[Job], finished: JobResults) -> CellResult:
    runs = tuple(finished.runs[job.key] for job in jobs if job.key in finished.runs)
    values = tuple(measure(store, run, cell.metric) for run in runs)
    return CellResult(cell, values, runs, tuple(run_cost(store, run) for run in runs))


def _failure(jobs: list[Job], finished: JobResults) -> str:
    """The distinct reasons for which jobs of a cell failed; empty if none did."""
    return "; ".join(dict.fromkeys(finished.failed[job.key] for job in jobs if job.key in finished.failed))


def data_sources(table: Table, scale: str) -> set[str]:
    """The data sets that a table needs at a scale, by the names that `--data-path` uses."""
    experiments = [raw for cell in build_cells(table, scale) for raw in (cell.raw, *cell.starts)]
    return {data_source(section) for raw in experiments for section in data_sections(raw).values()}


def count_runs(table: Table, scale: str) -> int:
    """The number of runs of a table at a scale, without pretraining."""
    distinct = {(str(cell.raw), str(cell.starts)) for cell in build_cells(table, scale)}
    return table.scale(scale).seeds * len(distinct)


def _data_advice(source: str) -> str:
    """How to get a missing data set."""
    try:
        how = describe(source).how_to_get
    except InputError:
        how = "write it as an .npz file"
    return f"{source} (give --data-path {source}=FOLDER; {how})"
