"""Runs a table: what is in the store is taken from there, the rest is done, and all of it is put beside the print."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from undergrowth.core import InputError
from undergrowth.data import describe
from undergrowth.reproduce.cells import Cell, cells, data_sections, source_of
from undergrowth.reproduce.crew import Crew
from undergrowth.reproduce.findings import Finding, Report, cost, measured
from undergrowth.reproduce.jobs import Job, Shelf, Sources, jobs_of
from undergrowth.reproduce.table import Layer, Table, find
from undergrowth.runs import Store


def reproduce(
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
    on_share: Callable[[Job, float], None] = lambda *_: None,
) -> Report:
    """Our figures for a table, beside the published ones.

    Every cell and seed is a run of the store in `out`. A second call takes the finished ones from there and goes on
    with those that were stopped. `paths` says where the data sets are; a cell whose data are not there is left out.
    `on_plan` is told the jobs before the first begins, `on_share` how much of each is done.
    """
    described = find(table)
    if jobs < 1 or (seeds is not None and seeds < 1):
        raise InputError(f"{'jobs' if jobs < 1 else 'seeds'} must be at least 1")
    chosen = cells(described, scale, only)
    sources = Sources(paths or {})
    fast = {"engine": "serial"} if device == "cpu" else {"engine": "vector", "precision": "tf32"}
    run = {"device": device, **fast, **({"engine": engine} if engine else {}), "out": out}
    store = Store(out, create=True)
    try:
        shelf = Shelf(store)
        wanted, left_out = _wanted(chosen, seeds or described.scale(scale).seeds, run, sources, shelf)
        if not wanted:
            needed = sorted({source for missing in left_out.values() for source in missing})
            raise InputError(f"table {described.name} needs data that is not there: {'; '.join(map(advice, needed))}")
        planned = list({job.key: job for each in wanted.values() for job in each}.values())
        on_plan(planned)
        ended = Crew(shelf, jobs, on_share).carry_out(planned)
        findings, failed = [], {}
        for cell, of_seeds in wanted.items():
            runs = tuple(ended.runs[job.key] for job in of_seeds if job.key in ended.runs)
            reasons = dict.fromkeys(ended.failed[job.key] for job in of_seeds if job.key in ended.failed)
            if reasons:
                failed[cell.name] = "; ".join(reasons)
            values = tuple(measured(store, run, cell.metric) for run in runs)
            findings.append(Finding(cell, values, runs, tuple(cost(store, run) for run in runs)))
    finally:
        store.close()
    if ended.wrong_input and not ended.runs:
        raise InputError(next(iter(failed.values())))
    reasons_left_out = {name: f"there is no {', '.join(sorted(missing))}" for name, missing in left_out.items()}
    return Report(described, scale, tuple(findings), reasons_left_out, failed)


def _wanted(
    chosen: list[Cell], seeds: int, run: Layer, sources: Sources, shelf: Shelf
) -> tuple[dict[Cell, list[Job]], dict[str, set[str]]]:
    """The jobs of every cell that can be run, and the data sets that the others lack."""
    wanted, left_out = {}, {}
    for cell in chosen:
        jobs, missing = jobs_of(cell, seeds, run, sources, shelf)
        if jobs:
            wanted[cell] = jobs
        else:
            left_out[cell.name] = missing
    return wanted, left_out


def sources_of(table: Table, scale: str) -> set[str]:
    """The data sets that a table takes, by the names under which a user says where they are."""
    trees = [tree for cell in cells(table, scale) for tree in (cell.tree, *cell.starts)]
    return {source_of(section) for tree in trees for section in data_sections(tree).values()}


def runs_of(table: Table, scale: str) -> int:
    """How many runs a table takes, pretraining not counted."""
    seeds = table.scale(scale).seeds
    distinct = {(str(cell.tree), str(cell.starts)) for cell in cells(table, scale)}
    return seeds * len(distinct)


def advice(source: str) -> str:
    """What to do about a data set that is not there."""
    try:
        how = describe(source).how_to_get
    except InputError:
        how = "write it as an .npz file"
    return f"{source} (give --data-path {source}=FOLDER; {how})"
