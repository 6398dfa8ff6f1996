"""Runs in groups: which belong together, what a group is called, and the mean and deviation over its runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from undergrowth.core import InputError, Metric, suggest
from undergrowth.report.figures import cost_of
from undergrowth.report.run_names import as_names
from undergrowth.report.run_record import RunRecord, differences, distinct_labels, shared_metric
from undergrowth.report.tables import NO_VALUE

SEED = "run.seed"


class Spread(NamedTuple):
    """The mean of some values and their sample standard deviation (n - 1), which one value does not have."""

    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Group:
    """Runs with the same values of some settings, which pages show with one colour."""

    label: str
    records: tuple[RunRecord, ...]

    @property
    def devices(self) -> list[dict[str, Any]]:
        """The devices of all runs: a device of three runs is there three times."""
        return [device for record in self.records for device in record.devices]

    def spread(self, key: str) -> Spread | None:
        """That of the finite totals `key` of the runs; `bytes` are those down and up."""
        found = [cost_of(record.totals, key) for record in self.records]
        return spread(value for value in found if value is not None)


def group_records(records: Sequence[RunRecord], paths: Sequence[str] = ()) -> list[Group]:
    """The runs by their values of the settings `paths`, in the order of their first runs.

    `paths` are paths of settings such as train.lr; `method`, `data`, `model` and `fleet` stand for their names. The
    default is every setting in which the runs differ but the seed; a group then has one run per seed. A second run with
    the same settings and seed, which may have had another object in place of a name, starts another group. Runs of a
    sweep are grouped by their variants instead.
    """
    if not paths and all(record.variant for record in records):
        variants = dict.fromkeys(record.variant for record in records)
        return [Group(name, tuple(each for each in records if each.variant == name)) for name in variants]
    used = _checked(records, paths) if paths else [path for path in differences(records) if path != SEED]
    members: dict[str, list[RunRecord]] = {}
    for record in records:
        key = repr([record.named_settings.get(path) for path in used])
        while not paths and record.row["seed"] in [each.row["seed"] for each in members.get(key, ())]:
            key += " again"
        members.setdefault(key, []).append(record)
    first_runs = [each[0] for each in members.values()]
    labels = distinct_labels(first_runs, used, with_method=not paths)
    return [Group(label, tuple(each)) for label, each in zip(labels, members.values(), strict=True)]


def spread(values: Iterable[float]) -> Spread | None:
    """The mean and the deviation of `values`; None if there are none."""
    known = list(values)
    if not known:
        return None
    return Spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)


def format_spread(values: Spread | None, formatted: Callable[[float], str]) -> str:
    """Mean ± deviation, both written by `formatted`: 0.9120 ± 0.0031."""
    if values is None:
        return NO_VALUE
    deviation = "" if values.deviation is None else f" ± {formatted(values.deviation)}"
    return f"{formatted(values.mean)}{deviation}"


def groups_metric(groups: Sequence[Group]) -> Metric:
    """The main metric of the runs of all groups, or the loss if their tasks have different ones."""
    return shared_metric([record for group in groups for record in group.records])


def _checked(records: Sequence[RunRecord], paths: Sequence[str]) -> list[str]:
    known = list(dict.fromkeys(path for record in records for path in record.named_settings))
    found = []
    for path in as_names("group", paths):
        whole = f"{path}.name" if f"{path}.name" in known else path
        if whole not in known:
            raise InputError(f"group '{path}' is not a setting of these runs; {suggest(path, known)}")
        found.append(whole)
    return list(dict.fromkeys(found))
