"""Analyses of finished runs: numbers, and the sections of a report that show them.

A new one is its file with an `Analysis`, and a line in the table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn

from undergrowth.core import InputError, Method, RunError, nearest
from undergrowth.data import Dataset, Population
from undergrowth.report.analyses.analysis import PROBLEM, Analysis, Numbers, Seen
from undergrowth.report.analyses.attention import ATTENTION
from undergrowth.report.analyses.bias import BIAS
from undergrowth.report.analyses.cka import CKA
from undergrowth.report.analyses.efficiency import EFFICIENCY
from undergrowth.report.analyses.entropy import ENTROPY
from undergrowth.report.analyses.finished import Objects, reopened
from undergrowth.report.analyses.tsne import MAP
from undergrowth.report.html import Page, escape
from undergrowth.report.record import Record, read
from undergrowth.runs import Store

ANALYSES: dict[str, Analysis] = {
    "cka": CKA, "bias": BIAS, "attention": ATTENTION, "entropy": ENTROPY, "tsne": MAP, "efficiency": EFFICIENCY,
}  # fmt: skip

Found = Mapping[str, Mapping[str, Numbers]]  # analysis → run → numbers


def analyse(
    runs: Sequence[str],
    analyses: Sequence[str] = ("all",),
    out_folder: str | Path = "runs",
    *,
    devices: int = 10,
    method: Method | None = None,
    data: Dataset | Population | None = None,
    model: Callable[[], nn.Module] | None = None,
    progress: bool | None = None,
) -> dict[str, dict[str, Numbers]]:
    """The numbers of some analyses, or of `all`, of finished runs: {"cka": {run: {...}}}.

    Runs are ids, beginnings of ids, or `last`. Devices are so many, those with most samples. What a run was given as
    a method, data or model object it needs again. An analysis that a run does not allow has the one entry "problem",
    with the reason. `progress`: a bar on standard error; by default when that is a terminal.
    """
    names = chosen(analyses)
    if devices < 1:
        raise InputError(f"devices {devices} must be at least 1")
    store = Store(out_folder)
    try:
        records = read(store, runs)
    finally:
        store.close()
    given = Objects(method, data, model)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = sys.stderr.isatty() if progress is None else progress
    bar = Progress(*columns, console=Console(stderr=True), disable=not shown, transient=True)
    found: dict[str, dict[str, Numbers]] = {name: {} for name in names}
    with bar if shown else nullcontext():
        for record in records:
            with reopened(record, Path(out_folder).expanduser(), given, devices, bar) as run:
                for name in names:
                    try:
                        found[name][record.run] = ANALYSES[name].look(record, run)
                    except (InputError, RunError) as error:
                        found[name][record.run] = {PROBLEM: str(error)}
    return found


def chosen(names: Sequence[str]) -> list[str]:
    """The analyses that a user named, each once; `all` stands for all."""
    for name in names:
        if name not in ANALYSES and name != "all":
            raise InputError(f"analysis '{name}' is not known; {nearest(name, [*ANALYSES, 'all'])}")
    return list(ANALYSES) if "all" in names else list(dict.fromkeys(names))


def sections(page: Page, found: Found, records: Sequence[Record], labels: Sequence[str]) -> None:
    """One for each analysis, with all runs; and for a run that does not allow it, why."""
    for name, by_run in found.items():
        analysis = ANALYSES[name]
        page.section(analysis.title, analysis.text)
        runs = [(place, label, by_run.get(record.run)) for place, (record, label) in enumerate(zip(records, labels))]
        seen = [Seen(place, label, numbers) for place, label, numbers in runs if numbers and PROBLEM not in numbers]
        for _, label, numbers in runs:
            if numbers and PROBLEM in numbers:
                before = f"{escape(label)}: " if len(records) > 1 else ""
                page.add(f"<p>{before}Not possible: {escape(numbers[PROBLEM])}.</p>")
        if seen:
            analysis.show(page, seen)
