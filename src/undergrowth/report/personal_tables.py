"""Tables about the models of devices: relative accuracy, device classes, and who gains between two runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from undergrowth.report.run_record import RunRecord
from undergrowth.report.tables import NO_VALUE, WideOrNarrow, count, stackable_table
from undergrowth.runs.relative_accuracy import FEDERATED, Change, Distribution, PersonalAccuracy, changes

COLUMNS = (
    "model", "accuracy", "variance", "relative", "variance", "best 10 %", "variance", "worst 10 %", "variance",
    "below 0", "",
)  # fmt: skip
TIER_COLUMNS = ("class", "devices", "model", "relative", "variance", "best 10 %", "worst 10 %", "below 0", "")
# Columns whose cells are one below the other in a narrow terminal.
_STACKED = ((0,), (1, 2), (3, 4), (5, 6), (7, 8), (9, 10))
_STACKED_TIERS = ((0, 1), (2,), (3, 4), (5,), (6,), (7, 8))
CHANGE_COLUMNS = ("model", "run", "gain", "lose", "same", "mean change", "largest losses")


def percent(value: float | None, signed: bool = False) -> str:
    """A fraction in percent with one decimal."""
    return NO_VALUE if value is None else f"{round(100 * value, 1) + 0.0:{'+' if signed else ''}.1f} %"  # no -0.0


def _variance(value: float) -> str:
    """A variance of fractions, in percent²."""
    return f"{1e4 * value:.1f}"


def personal_rows(personal: PersonalAccuracy) -> list[tuple[Any, ...]]:
    """A row per model, for `COLUMNS`. Variances are in percent²."""
    rows: list[tuple[Any, ...]] = []
    for each in personal.figures():
        accuracy: Distribution = each["accuracy"]
        start = (each["model"], percent(accuracy.mean), _variance(accuracy.variance))
        rows.append((*start, *_relative_cells(each["relative"])))
    return rows


def personal_table(personal: PersonalAccuracy) -> WideOrNarrow:
    """The figures of every model, for a terminal."""
    return stackable_table(COLUMNS, personal_rows(personal), _STACKED, right=range(1, len(COLUMNS)))


def tier_table(personal: PersonalAccuracy) -> WideOrNarrow:
    """The figures of every device class and compared model, for a terminal."""
    return stackable_table(TIER_COLUMNS, tier_rows(personal), _STACKED_TIERS, right=(1, *range(3, len(TIER_COLUMNS))))


def _relative_cells(relative: Distribution | None) -> tuple[str, ...]:
    if relative is None:  # of the local model, with which the others are compared
        return (NO_VALUE,) * 8
    return (
        percent(relative.mean, True), _variance(relative.variance),
        percent(relative.best_mean, True), _variance(relative.best_variance),
        percent(relative.worst_mean, True), _variance(relative.worst_variance),
        count(relative.below_zero), percent(relative.fraction_below_zero),
    )  # fmt: skip


def tier_rows(personal: PersonalAccuracy) -> list[tuple[Any, ...]]:
    """A row per device class and compared model, for `TIER_COLUMNS`."""
    found = {model: personal.by_tier(model) for model in personal.compared}
    rows: list[tuple[Any, ...]] = []
    for tier in sorted(set(personal.tiers)):
        for model, by_tier in found.items():
            each = by_tier[tier]
            cells = (percent(each.mean, True), _variance(each.variance), percent(each.best_mean, True))
            below = (count(each.below_zero), percent(each.fraction_below_zero))
            rows.append((tier, count(each.devices), model, *cells, percent(each.worst_mean, True), *below))
    return rows


def shared_models(records: Sequence[RunRecord]) -> list[str]:
    """The compared models that every run evaluated; none unless all runs did."""
    found = [record.personal for record in records]
    first = found[0]
    if first is None:
        return []
    return [model for model in first.compared if all(each is not None and model in each.models for each in found)]


def change_from(first: RunRecord, other: RunRecord, model: str) -> Change | None:
    """Who gains and who loses accuracy with `model` from the first run to the other, by the names of devices."""
    if first.personal is None or other.personal is None:
        return None
    return changes(first.personal.by_device(model), other.personal.by_device(model))


def change_rows(records: Sequence[RunRecord], labels: Sequence[str]) -> list[tuple[Any, ...]]:
    """A row per model and run after the first, which it is compared with, for `CHANGE_COLUMNS`."""
    rows: list[tuple[Any, ...]] = []
    for model in shared_models(records):
        for record, label in zip(records[1:], labels[1:], strict=True):
            change = change_from(records[0], record, model)
            if change is not None:
                losses = ", ".join(f"{device} {percent(value, True)}" for device, value in change.largest_losses)
                numbers = (change.gain, change.lose, change.same, percent(change.mean, True))
                rows.append((model, label, *numbers, losses or NO_VALUE))
    return rows


def headline(personal: PersonalAccuracy) -> str:
    """How many devices lose by joining, in one sentence."""
    below = personal.relative_distribution(FEDERATED)
    number = f"{count(below.below_zero)} of {count(below.devices)} devices ({percent(below.fraction_below_zero)})"
    words = f"{number} have a better model alone than the federated one"
    adapted = [model for model in personal.compared if model != FEDERATED]
    found = {model: personal.relative_distribution(model) for model in adapted}
    if found:
        best = min(found, key=lambda model: (found[model].below_zero, -found[model].mean))
        words += f"; with {best}, {count(found[best].below_zero)}"
    return words
