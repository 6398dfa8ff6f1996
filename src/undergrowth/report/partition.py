"""The partition of a stored run, built again from its settings; and the picture of any partition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from undergrowth.core import InputError
from undergrowth.data import describe, draw_bubbles
from undergrowth.devices import build_fleet
from undergrowth.methods import METHODS
from undergrowth.report.figures import Figure
from undergrowth.report.html import Page, escape
from undergrowth.report.record import Record
from undergrowth.runs.checkpoint import replace_file
from undergrowth.runs.config import experiment
from undergrowth.runs.parts import population_of

_MOST_MEGABYTES = 200  # a page should not take longer than a run
_MOST_DEVICES = 20_000


def partition_of(record: Record, known: dict[str, Any] | None = None) -> tuple[str, Any] | None:
    """What makes this partition the one it is, and the population; None where it cannot be had cheaply.

    `known` has the populations of other runs, and takes this one in.
    """
    known = {} if known is None else known
    settings = experiment(record.row["experiment"]["settings"])
    method = METHODS.get(settings.method.name)
    if "data" in record.objects or record.row["clients"] > _MOST_DEVICES or (method is not None and method.pooled):
        return None
    key = f"{settings.data.model_dump_json()} {settings.run.seed}"
    if key in known:
        return key, known[key]
    try:
        megabytes = describe(settings.data.name).megabytes
        if megabytes is None or megabytes > _MOST_MEGABYTES:
            return None
        known[key] = population_of(settings, None)
    except InputError:  # the files have gone since
        return None
    return key, known[key]


def tiers(record: Record, population: Any) -> dict[str, str]:
    """The class of every device; of an unfinished run, as far as it can be found out again."""
    if record.devices or population is None:
        return {str(device["device"]): str(device["tier"]) for device in record.devices}
    settings = experiment(record.row["experiment"]["settings"])
    try:
        classes = build_fleet(settings.fleet.name, population.devices, settings.run.seed).classes
    except InputError:  # a fleet file that has gone since
        return {}
    return {device: tier for tier, devices in classes.items() for device in devices}


def holdings(population: Any) -> Figure:
    """Which device holds how much of which class; without the colours of a template, which the page sets itself."""
    drawn = json.loads(draw_bubbles(population.counts(), population.devices, population.dataset.class_names).to_json())
    layout = {name: value for name, value in drawn["layout"].items() if name != "template"}
    title = {**layout["title"], "font": {"size": 15}, "x": 0, "xref": "paper", "xanchor": "left"}
    margin = {"l": 64, "r": 16, "t": 44, "b": 48}
    return {"data": drawn["data"], "layout": {**layout, "title": title, "margin": margin}}


def draw(section: dict[str, Any], seed: int, target: str | Path) -> Path:
    """Writes a page with the bubble plot of any partition; `section` is what an experiment has under `data`."""
    settings = experiment({"data": section, "run": {"seed": seed}})
    population: Any = population_of(settings, None)
    page = Page(f"{settings.data.name}, {settings.data.partition}")
    page.add(f"<h1>{escape(page.title)}</h1>")
    page.section("Who holds what", "Training samples by device and class; the area of a bubble is their number.")
    page.figures([holdings(population)])
    path = Path(target).expanduser()
    replace_file(path, page.render().encode("utf-8"))
    return path
