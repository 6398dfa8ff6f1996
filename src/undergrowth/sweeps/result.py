"""The result of a sweep: its runs, its table and its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from undergrowth.core import Metric, RunError
from undergrowth.report import export, write_report
from undergrowth.report.run_record import RunRecord, common_value, shared_metric
from undergrowth.runs import Result, Store
from undergrowth.runs.result import result_of
from undergrowth.sweeps.comparison import ComparisonRow, VariantRuns, compare


@dataclass(frozen=True)
class SweepResult:
    """The runs of a sweep by variant and seed."""

    variants: Sequence[VariantRuns]
    folder: Path  # of the runs
    target: float | None = None  # the value of the main metric that was asked for; None: see `goal`

    @property
    def runs(self) -> list[str]:
        """The ids of the finished runs, by variant and seed."""
        return [record.run for record in self._records]

    @property
    def failed(self) -> dict[str, str]:
        """The reason of every run that failed, by variant and seed."""
        return {
            f"{variant.name}, seed {seed}": reason
            for variant in self.variants
            for seed, reason in variant.failed.items()
        }

    @cached_property
    def results(self) -> list[Result]:
        """The results of the finished runs, by variant and seed, as `ug.load` returns them."""
        with Store(self.folder) as store:
            return [result_of(store, run) for run in self.runs]

    @property
    def _records(self) -> list[RunRecord]:
        return [record for variant in self.variants for record in variant.records.values()]

    @cached_property
    def metric(self) -> Metric:
        """The main metric of the runs, by which they are compared."""
        return shared_metric(self._records)

    @cached_property
    def goal(self) -> float | None:
        """The value of `metric` for the rounds and costs to reach it: the target, or the best that all runs reached."""
        return self.target if self.target is not None else common_value(self._records, self.metric)

    @cached_property
    def comparison(self) -> list[ComparisonRow]:
        """A row for each variant: means and deviations over its seeds, differences from the first variant."""
        return compare(self.variants, self.goal, self.metric)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The comparison as plain dictionaries."""
        return [row.flat(self.metric.name) for row in self.comparison]

    def page(self, target: str | PathLike[str]) -> Path:
        """Write the HTML page about all finished runs to `target` and return its path."""
        if not self.runs:
            raise RunError("no run of the sweep is finished, so there is nothing to write a page about")
        return write_report(self.runs, self.folder, Path(target), variants=self._variant_of_run)

    def latex(self, target: str | PathLike[str] | None = None) -> str:
        """The table for LaTeX's booktabs package, one row per variant; also written to `target`, if given."""
        if not self.runs:
            raise RunError("no run of the sweep is finished, so there is nothing to write a table about")
        path = None if target is None else Path(target)
        return export(self.runs, "latex", self.folder, path, variants=self._variant_of_run).decode("utf-8")

    @property
    def _variant_of_run(self) -> dict[str, str]:
        return {record.run: variant.name for variant in self.variants for record in variant.records.values()}

    def __repr__(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"SweepResult({len(self.variants)} variants, {len(self.runs)} runs{failed})"
