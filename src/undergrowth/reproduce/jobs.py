"""The runs that a table needs."""

from __future__ import annotations

from dataclasses import replace

from undergrowth.reproduce.data_paths import DataPaths
from undergrowth.reproduce.table import Raw
from undergrowth.reproduce.table_cells import Cell
from undergrowth.sweeps.jobs import Job, RunIndex
from undergrowth.sweeps.layers import merge_layers


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
