"""The partition of a stored run, rebuilt from its settings, and the figure of a partition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from undergrowth.core import InputError
from undergrowth.data import describe, draw_bubbles
from undergrowth.devices import build_fleet
from undergrowth.methods import METHODS
from undergrowth.report.figures import Figure
from undergrowth.report.html import Page
from undergrowth.report.run_record import RunRecord
from undergrowth.runs.atomic_files import check_target, replace_file
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.data_builder import build_population
from undergrowth.runs.stored_experiment import stored_experiment

_MAX_MEGABYTES = 200  # larger data sets are not loaded, because a report should take seconds
_MAX_DEVICES = 20_000


def rebuild_partition(record: RunRecord, cache: dict[str, Any] | None = None) -> tuple[str, Any] | None:
    """A key that identifies the partition of a run, and its population.

    None if the data is missing, too large, pooled, or was a Python object. `cache` maps keys to populations; runs with
    equal partitions share one.
    """
    cache = {} if cache is None else cache
    experiment = stored_experiment(record.row)
    method = METHODS.get(experiment.method.name)
    if "data" in record.objects or record.row["clients"] > _MAX_DEVICES or (method is not None and method.pooled):
        return None
    key = f"{experiment.data.model_dump_json()} {experiment.run.seed}"
    if key in cache:
        return key, cache[key]
    try:
        megabytes = describe(experiment.data.name).megabytes
        if megabytes is None or megabytes > _MAX_MEGABYTES:
            return None
        cache[key] = build_population(experiment, None)
    except InputError:  # the files were deleted after the run
        return None
    return key, cache[key]


def tiers_by_device(record: RunRecord, population: Any) -> dict[str, str]:
    """Device → device class. For an unfinished run the fleet is rebuilt, if `population` is given."""
    if record.devices or population is None:
        return {str(device["device"]): str(device["tier"]) for device in record.devices}
    experiment = stored_experiment(record.row)
    try:
        classes = build_fleet(experiment.fleet.name, population.devices, experiment.run.seed).classes
    except InputError:  # the fleet file was deleted after the run
        return {}
    return {device: tier for tier, devices in classes.items() for device in devices}


def add_partition_section(page: Page) -> None:
    page.section("Partition", "Training samples by device and class; the area of a bubble is the number of samples.")


def partition_figure(population: Any) -> Figure:
    """The number of samples of each class on each device, as bubbles. The task must be classification."""
    drawn = json.loads(draw_bubbles(population.counts(), population.devices, population.dataset.class_names).to_json())
    # The page sets its own colours, so the template is removed.
    layout = {name: value for name, value in drawn["layout"].items() if name != "template"}
    return {"data": drawn["data"], "layout": {**layout, "margin": {"l": 56, "r": 12, "t": 12, "b": 48}}}


def write_partition_page(section: dict[str, Any], seed: int, target: str | Path) -> Path:
    """Write a page with the figure of a partition. `section` is the `data` section of an experiment."""
    path = check_target(target, "partition.html")
    experiment = parse_experiment({"data": section, "run": {"seed": seed}})
    population: Any = build_population(experiment, None)
    if population.task != "classification":
        raise InputError(f"data set '{experiment.data.name}' is for {population.task}, which has no classes to plot")
    page = Page(f"{experiment.data.name}, {experiment.data.partition}")
    page.section(page.title, level=1)
    add_partition_section(page)
    page.figures([partition_figure(population)])
    replace_file(path, page.render().encode("utf-8"))
    return path
