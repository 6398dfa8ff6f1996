"""The runs that the cells of a table need."""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.reproduce.data_paths import DataPaths
from undergrowth.reproduce.table import Raw
from undergrowth.reproduce.table_cells import Cell, Pretraining
from undergrowth.sweeps.jobs import Job, RunIndex
from undergrowth.sweeps.layers import merge_layers


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
        own = raw.get("run", {})
        settings = {"run": {**run, **own, "seed": seed + own.get("seed", 0)}}
        return Job(
            merge_layers(paths.fill_in(raw), settings),
            build(after.raw, after.after) if after else None,
            build(of_devices.raw, of_devices.after) if of_devices else None,
            bool(after and after.keep_head),
            frozenset(paths.missing(raw)),
        )

    return build(cell.raw, start, cell.device_start)
