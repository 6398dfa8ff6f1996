"""Analyses of finished runs: their numbers, and the sections of a page that show them.

To add an analysis, write a file with an `Analysis` and add one line to `ANALYSES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn

from undergrowth.core import InputError, Method, RunError, suggest
from undergrowth.data import Dataset, Population
from undergrowth.engines import restore_torch_settings
from undergrowth.report.analyses.analysis import PROBLEM, Analysis, Numbers, RunNumbers
from undergrowth.report.analyses.attention import ATTENTION
from undergrowth.report.analyses.bias import BIAS
from undergrowth.report.analyses.cka import CKA
from undergrowth.report.analyses.efficiency import EFFICIENCY
from undergrowth.report.analyses.entropy import ENTROPY
from undergrowth.report.analyses.pruning import PRUNING
from undergrowth.report.analyses.reopened_run import UserObjects, reopen_run
from undergrowth.report.analyses.tsne import TSNE_MAP
from undergrowth.report.html import Page
from undergrowth.report.run_names import as_names
from undergrowth.report.run_record import RunRecord, load_records
from undergrowth.runs import Store
from undergrowth.runs.progress import is_terminal

ANALYSES: dict[str, Analysis] = {
    "cka": CKA, "bias": BIAS, "attention": ATTENTION, "entropy": ENTROPY, "tsne": TSNE_MAP, "efficiency": EFFICIENCY,
    "pruning": PRUNING,
}  # fmt: skip

AnalysisNumbers = Mapping[str, Mapping[str, Numbers]]  # analysis → run → numbers


def analyse(
    runs: str | Sequence[str],
    analyses: str | Sequence[str] = ("all",),
    out_folder: str | Path = "runs",
    *,
    devices: int = 10,
    method: Method | None = None,
    data: Dataset | Population | None = None,
    model: Callable[[], nn.Module] | None = None,
    progress: bool | None = None,
) -> dict[str, dict[str, Numbers]]:
    """The numbers of analyses of finished runs: {"cka": {run: {...}}}.

    `runs` are ids, starts of ids, or `last`; `analyses` are names, or `all`. The `devices` devices with the most
    samples are analysed. A run that was given `method`, `data` or `model` as an object needs the object again. If an
    analysis is not possible for a run, its numbers are {"problem": reason}. `progress` shows a bar on standard error;
    the default is to show it on a terminal.
    """
    names = _check_names(as_names("analyses", analyses))
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise InputError(f"devices {devices!r} must be a whole number of at least 1")
    with Store(out_folder) as store:
        records = load_records(store, as_names("runs", runs))
    folder, objects = Path(out_folder).expanduser(), UserObjects(method, data, model)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = is_terminal() if progress is None else progress
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    numbers: dict[str, dict[str, Numbers]] = {name: {} for name in names}
    with bar if shown else nullcontext():
        for record in records:
            for name, run_numbers in _analyse_run(record, names, folder, objects, devices, bar).items():
                numbers[name][record.run] = run_numbers
    return numbers


def _analyse_run(
    record: RunRecord, names: Sequence[str], folder: Path, objects: UserObjects, devices: int, bar: Progress
) -> dict[str, Numbers]:
    numbers: dict[str, Numbers] = {}
    with restore_torch_settings():  # the reopened run changes torch's settings to its own
        # The run is only reopened if an analysis needs more than its record.
        reopen = cache(lambda: reopen_run(record, folder, objects, devices, bar))
        for name in names:
            try:
                if ANALYSES[name].needs_classes and record.task != "classification":
                    raise InputError(f"it needs classes, and the task of run '{record.run}' is {record.task}")
                numbers[name] = ANALYSES[name].compute(record, reopen)
            except (InputError, RunError) as error:
                numbers[name] = {PROBLEM: str(error)}
    return numbers


def _check_names(names: Sequence[str]) -> list[str]:
    """The names of the analyses to run, without duplicates; `all` is replaced by the names of all analyses."""
    for name in names:
        if name not in ANALYSES and name != "all":
            raise InputError(f"analysis '{name}' is not known; {suggest(name, [*ANALYSES, 'all'])}")
    return list(ANALYSES) if "all" in names else list(dict.fromkeys(names))


def add_sections(
    page: Page, analyses: AnalysisNumbers, records: Sequence[RunRecord], labels: Sequence[str], places: Sequence[int]
) -> None:
    """Add one section per analysis, with all runs; for a run that cannot be analysed, the reason.

    `places` are the places of the groups of the runs, which have the colours.
    """
    for name, by_run in analyses.items():
        analysis = ANALYSES[name]
        page.section(analysis.title, analysis.text)
        analysed = []
        for record, label, place in zip(records, labels, places, strict=True):
            numbers = by_run.get(record.run)
            if numbers and PROBLEM in numbers:
                prefix = f"{label}: " if len(records) > 1 else ""
                page.text(f"{prefix}Not possible: {numbers[PROBLEM]}.")
            elif numbers:
                analysed.append(RunNumbers(place, label, numbers))
        if analysed:
            analysis.render(page, analysed)
