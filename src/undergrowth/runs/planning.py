"""The plan: what one round costs each class of devices with each method, and how many devices could take part."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from undergrowth.core import InputError, Method, Model, Shard
from undergrowth.data import Dataset, Population, describe, parse_rule
from undergrowth.devices import Tracer
from undergrowth.methods import METHODS
from undergrowth.runs.builders import DEFAULT_CLIENTS, build_method, build_population, named_model
from undergrowth.runs.config import Experiment, PublicSection
from undergrowth.runs.federation import federate
from undergrowth.runs.own_objects import is_reference
from undergrowth.runs.preview import Prospect, price_devices

Row = dict[str, Any]


def plan_rows(
    experiment: Experiment,
    methods: Sequence[str | Method] = (),
    data: Dataset | Population | None = None,
    model: Callable[[], nn.Module] | None = None,
    left_out: dict[str, str] | None = None,
) -> Iterator[Row]:
    """One row per method and class of devices, with the price of one round of one device.

    That device is the one with the median time in its class. `fitting` counts the devices of the class that could take
    part. Without `methods`, prices every method that runs on devices and works with the model, after the user's own
    method if the experiment names one; `left_out` gets the other methods, each with the reason.
    """
    if getattr(data, "public", None) is not None:
        # The public samples are taken out already.
        experiment = experiment.model_copy(update={"public": PublicSection()})
    population = build_population(experiment, data) if data is not None else population_or_outline(experiment)
    prepared: Callable[[], nn.Module] | Model = model or named_model(experiment.model, population)
    experiment = experiment.with_population()
    tracers: list[Tracer] = []
    for method in methods or default_methods(experiment):
        options = experiment.method.options if method == experiment.method.name else {}
        chosen = build_method(method, options) if isinstance(method, str) else method
        try:
            federation = federate(experiment, chosen, population, prepared)
            prepared = federation.task.model  # built and checked once for all methods
            # Methods that differ only at the server share a tracer, so that the work of their client is traced once.
            clock = federation.clock
            clock.tracer = next((known for known in tracers if known.client == chosen.client), clock.tracer)
            tracers.append(clock.tracer)
            prospects = {each.device: each for each in price_devices(federation, chosen.server.accepts_partial)}
        except InputError as error:
            if methods or not isinstance(prepared, Model):
                raise
            if left_out is not None:
                left_out[str(method)] = str(error)
            continue  # this method does not work with the model, and the user did not ask for it by name
        name = method if isinstance(method, str) else type(method).__name__.lower()
        deadline = None if chosen.server.asynchronous else experiment.fleet.deadline
        for tier, devices in federation.fleet.classes.items():
            priced = [prospects[device] for device in devices if device in prospects]
            if priced:
                yield _row(name, tier, devices, priced, federation.population, deadline)


def describe_left_out(left_out: Mapping[str, str]) -> list[str]:
    """A note for each reason why methods are left out of a plan."""
    by_reason: dict[str, list[str]] = {}
    for method, reason in left_out.items():
        by_reason.setdefault(re.sub(rf"\b{re.escape(method)}\b", "the method", reason), []).append(method)
    return [f"left out: {', '.join(names)}: {reason}" for reason, names in by_reason.items()]


def default_methods(experiment: Experiment) -> list[str]:
    """The user's own method, if the experiment names one, and the methods that train on devices, not on pooled data."""
    own = [experiment.method.name] if is_reference(experiment.method.name) else []
    return own + [name for name, kind in METHODS.items() if not kind.pooled]


def _row(
    method: str,
    tier: str,
    devices: Sequence[str],
    priced: list[Prospect],
    population: Population,
    deadline: float | None,
) -> Row:
    by_time = sorted(priced, key=lambda prospect: prospect.timing.seconds)
    typical = by_time[(len(by_time) - 1) // 2]
    fitting = sum(prospect.verdict(deadline) == "fits" for prospect in priced)
    able = sum(population.size(device) > 0 for device in devices)  # devices without samples are never asked
    return {
        "method": method,
        "device": tier,
        "devices": len(devices),
        "flops": typical.total.flops,
        "memory_bytes": typical.total.memory,
        "bytes_down": typical.bytes_down,
        "bytes_up": typical.bytes_up,
        "seconds": typical.total.seconds,
        "joules": typical.total.joules,
        "verdict": typical.verdict(deadline),
        "fitting": round(fitting * able / len(priced)),
        "example": typical.device,
    }


def population_or_outline(experiment: Experiment) -> Population:
    """The population; if the data set is not on this machine, an outline with its published size in equal parts."""
    try:
        return build_population(experiment, None)
    except InputError:
        section = experiment.data
        if is_reference(section.name):
            raise
        entry = describe(section.name)
        if section.path is not None or entry.shape is None or entry.classes is None or entry.train is None:
            raise
        # An outline replaces missing files only; a wrong partition or option is still an error.
        if entry.embedded or set(section.options) - set(entry.options):
            raise
        parse_rule(section.partition)
        clients = section.clients or DEFAULT_CLIENTS
        public = experiment.public
        taken = (public.samples or round((public.share or 0) * entry.train)) if public.of_the_devices else 0
        size = round((entry.train - taken) * (1 - section.holdout) / clients)
        return Outline(section.name, entry.shape, entry.classes, clients, size, taken)


@dataclass(frozen=True)
class Outline:
    """A population of which only the sizes are known."""

    name: str
    shape: tuple[int, ...]
    classes: int
    clients: int
    samples: int
    taken: int = 0  # samples that the server holds

    @property
    def public(self) -> Shard | None:
        one = self.train("")
        return Shard(one.x.expand(self.taken, *self.shape), one.y.expand(self.taken)) if self.taken else None

    @property
    def devices(self) -> tuple[str, ...]:
        width = max(3, len(str(self.clients - 1)))
        return tuple(f"device-{number:0{width}d}" for number in range(self.clients))

    def size(self, device: str) -> int:
        return self.samples

    def train(self, device: str) -> Shard:
        dtype = torch.int64 if len(self.shape) == 1 else torch.float32
        return Shard(torch.zeros(1, *self.shape, dtype=dtype), torch.zeros(1, dtype=torch.int64))

    def test(self, device: str) -> Shard:
        return self.train(device)

    def central_test(self) -> Shard:
        return self.train("")


def takes_part(rows: Iterable[Row]) -> dict[str, int]:
    """The number of devices that could take part, by method."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["method"]] = counts.get(row["method"], 0) + row["fitting"]
    return counts
