"""Outline: a population of which only the sizes are known, for a plan without the data on this machine."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from undergrowth.core import TASKS, Shard
from undergrowth.data import MissingFilesError, Population, describe, device_names, parse_rule
from undergrowth.runs.config import Experiment
from undergrowth.runs.data_builder import DEFAULT_CLIENTS, build_population
from undergrowth.runs.own_objects import is_reference


def population_or_outline(experiment: Experiment) -> Population:
    """The population; if the data set is not on this machine, an outline with its published size in equal parts."""
    try:
        return build_population(experiment, None)
    except MissingFilesError:
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
        size = min(size, experiment.stream.memory or size)
        task = (experiment.task.name if "task" in entry.options else None) or entry.task
        return Outline(section.name, entry.shape, entry.classes, clients, size, taken, task)


@dataclass(frozen=True)
class Outline:
    """A population of which only the sizes are known."""

    name: str
    shape: tuple[int, ...]
    classes: int
    clients: int
    samples: int
    taken: int = 0  # samples that the server holds
    task: str = "classification"

    @property
    def public(self) -> Shard | None:
        if not self.taken:
            return None
        one = self.train("")
        return Shard(one.x.expand(self.taken, *self.shape), one.y.expand(self.taken, *one.y.shape[1:]))

    @property
    def devices(self) -> tuple[str, ...]:
        return device_names(self.clients)

    def size(self, device: str) -> int:
        return self.samples

    def train(self, device: str) -> Shard:
        dtype = torch.int64 if len(self.shape) == 1 else torch.float32
        return Shard(
            torch.zeros(1, *self.shape, dtype=dtype),
            TASKS[self.task]().example_labels(1, self.shape, self.classes, torch.device("cpu")),
        )

    def test(self, device: str) -> Shard:
        return self.train(device)

    def central_test(self) -> Shard:
        return self.train("")
