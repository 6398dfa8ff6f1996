"""Advice: changes of an experiment with which one more class of devices can take part, each found by pricing it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from undergrowth.core import InputError, Method
from undergrowth.methods import METHODS
from undergrowth.runs.config import Experiment
from undergrowth.runs.planning import Planner, Row, takes_part

SLICING = "heterofl"  # the method to try if no planned method lets the class take part
SMALL_CODEC = "int8"


@dataclass(frozen=True)
class Change:
    """New settings by their paths, such as {"train.batch": 16}, and the row of the class with these settings."""

    settings: Mapping[str, Any]
    row: Row


@dataclass(frozen=True)
class NextClass:
    """The class of devices that is nearest to taking part, as `row` of one method, and the changes that let it in."""

    row: Row
    changes: Sequence[Change]


def best_method(rows: Sequence[Row]) -> str:
    """The method that lets most devices take part; of equals, most classes, then the least energy of a job."""
    devices = takes_part(rows)

    def joules_per_job(name: str) -> float:  # not per round: a round of an asynchronous server is a few jobs
        return run_joules(rows, name) / max(run_jobs(rows, name), 1.0)

    return max(devices, key=lambda name: (devices[name], fitting_classes(rows, name), -joules_per_job(name)))


def fitting_classes(rows: Sequence[Row], method: str) -> int:
    """The number of classes whose typical device can take part."""
    return sum(row["verdict"] == "fits" for row in rows if row["method"] == method)


def run_jobs(rows: Sequence[Row], method: str) -> float:
    """The expected number of jobs of all devices in the whole run."""
    return math.fsum(row["run_jobs"] for row in rows if row["method"] == method)


def run_joules(rows: Sequence[Row], method: str) -> float:
    """The energy of all devices in the whole run."""
    return math.fsum(row["run_joules"] for row in rows if row["method"] == method)


def find_next_class(planner: Planner, rows: Sequence[Row], method: str) -> NextClass | None:
    """The next class for `method`, with its changes; None if the typical devices of all classes take part."""
    outside = [row for row in rows if row["method"] == method and row["verdict"] != "fits"]
    if not outside:
        return None
    # A shorter wait is easier to grant than more memory.
    nearest = min(outside, key=lambda row: (row["verdict"] == "too big", _missing_bytes(row), row["seconds"]))
    return NextClass(nearest, list(_find_changes(planner, rows, nearest)))


def _missing_bytes(row: Row) -> int:
    return int(row["runtime_bytes"] + row["memory_bytes"] - row["device_bytes"]) if row["verdict"] == "too big" else 0


def _find_changes(planner: Planner, rows: Sequence[Row], row: Row) -> Iterator[Change]:
    if row["runtime_bytes"] >= row["device_bytes"]:
        return  # no setting makes the runtime smaller
    method, experiment = planner.methods[row["method"]], planner.experiment
    # Of every line of attempts, the first that works: it changes the experiment least.
    for attempts in _attempts(experiment, row):
        works = (_try(planner, row, method, settings) for settings in attempts)
        yield from [change for change in works if change][:1]
    yield from _find_method(planner, rows, row, method)


def _attempts(experiment: Experiment, row: Row) -> Iterator[list[dict[str, Any]]]:
    """Settings to try, from the smallest change to the largest, in lines of the same kind."""
    train, links = experiment.train, experiment.links
    if row["verdict"] == "too big":
        yield [{"train.batch": size} for size in _halves(train.batch)]
        return
    yield [{"fleet.deadline": round_up(row["shortest_deadline"])}]
    yield [{"train.epochs": epochs} for epochs in _halves(train.epochs)]
    up = {"links.up": SMALL_CODEC} if links.up == "none" else {}
    down = {"links.down": SMALL_CODEC} if links.down == "none" else {}
    yield [settings for settings in (up, {**up, **down}) if settings]


def _halves(number: int) -> list[int]:
    return [number >> shift for shift in range(1, number.bit_length())]


def _find_method(planner: Planner, rows: Sequence[Row], row: Row, method: Method) -> Iterator[Change]:
    """Another planned method that lets the class take part, or else narrower slices of the model."""
    others = [each for each in rows if each["device"] == row["device"] and each["verdict"] == "fits"]
    if others:
        devices = takes_part(rows)
        best = max(others, key=lambda each: (devices[each["method"]], -each["joules"]))
        yield Change({"method": best["method"]}, best)
        return
    ratios = getattr(method, "ratios", None)
    if ratios is not None:
        narrower = {"method.ratios": [*ratios, ratios[-1] / 2]}
        change = _try(planner, row, replace(method, ratios=(*ratios, ratios[-1] / 2)), narrower)  # type: ignore[type-var]
    elif SLICING not in planner.methods:
        change = _try(planner, row, METHODS[SLICING](), {"method": SLICING})
    else:
        change = None
    if change:
        yield change


def _try(planner: Planner, row: Row, method: Method, settings: Mapping[str, Any]) -> Change | None:
    """The change to these settings, if the class takes part with them."""
    experiment = planner.experiment
    for path, value in settings.items():
        section, _, key = path.partition(".")
        if section != "method":
            changed = getattr(experiment, section).model_copy(update={key: value})
            experiment = experiment.model_copy(update={section: changed})
    try:
        priced = planner.price(settings.get("method", row["method"]), method, experiment)
    except InputError:
        return None  # the method does not work with these settings or with the model
    found = next((each for each in priced if each["device"] == row["device"]), None)
    return Change(settings, found) if found and found["verdict"] == "fits" else None


def round_up(seconds: float) -> float:
    """`seconds` rounded up to three digits."""
    step = 10.0 ** (math.floor(math.log10(seconds)) - 2)
    return float(f"{math.ceil(seconds / step) * step:.3g}")
