"""A finished run, set up again as it was when it ended: its federation and its final model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from rich.progress import Progress
from safetensors import SafetensorError
from torch import Tensor, nn

from undergrowth.core import Client, Context, InputError, Method, Packet, Shard, Task, Weights, not_finite
from undergrowth.data import Dataset, Population
from undergrowth.engines import restore_torch_settings, set_torch
from undergrowth.learning import Adaptive, Averaging, GradientClient, Momentum
from undergrowth.report.record import Record
from undergrowth.runs.config import Experiment, experiment
from undergrowth.runs.federation import Federation, federate
from undergrowth.runs.parts import torch_device
from undergrowth.runs.result import MODEL_FILE, load

MOST_TESTED = 2048  # samples of the central test set; of more, some drawn at random


class NotAModel(Exception):
    """What a client sends is neither the model nor a part of it."""


@dataclass(frozen=True)
class Objects:
    """What a run was given as Python objects, and needs again."""

    method: Method | None = None
    data: Dataset | Population | None = None
    model: Callable[[], nn.Module] | None = None


@dataclass(frozen=True)
class Finished:
    """What analyses look at. All that they draw at random is drawn from contexts of the run."""

    federation: Federation
    weights: Weights
    seed: int
    rounds: int
    most_devices: int
    bar: Progress

    @property
    def task(self) -> Task:
        return self.federation.task

    @property
    def levels(self) -> tuple[str, ...]:
        """Where the model can be cut, from the lowest up."""
        model = self.task.model
        if not model.stages:
            name = type(model.module).__name__
            raise InputError(f"features need a model that is a chain of stages (nn.Sequential), and {name} is not one")
        # Of levels at the same place, as small models have them, the last.
        names = {stage: level for level, stage in model.levels.items()}
        return tuple(names[stage] for stage in model.stages if stage in names)

    @property
    def devices(self) -> list[str]:
        """The devices with most samples, the largest first."""
        population = self.federation.population
        sizes = {name: population.size(name) for name in population.devices}
        able = [name for name, size in sizes.items() if size >= self.task.model.smallest_batch()]
        return sorted(able, key=lambda name: (-sizes[name], name))[: self.most_devices]

    def context(self, node: str) -> Context:
        """That of the last round, so that a schedule of the learning rate is where it ended."""
        return Context(self.seed, node, self.rounds - 1)

    def shard(self, device: str) -> Shard:
        return self.federation.population.train(device).to(self.federation.world.torch_device)

    def test(self) -> Shard:
        """Samples of the central test set, in a random order: a file may be sorted by class."""
        test = self.federation.test
        order = torch.randperm(len(test), generator=self.context("analysis").generator("test"))[:MOST_TESTED]
        return test.take(order.to(test.y.device))

    def class_names(self) -> list[str]:
        named = getattr(getattr(self.federation.population, "dataset", None), "class_names", ())
        return [str(name) for name in named] or [str(number) for number in range(self.task.classes)]

    def trained(self, client: Client, device: str) -> dict[str, Tensor]:
        """The final model after this client has trained it, once, on the samples of the device."""
        shard = self.shard(device)
        up, _ = client.local(self.task, Packet(self.weights), shard, {}, self.context(device))
        model = {**self.weights, **up.tensors}
        if unlike(self.task, model):
            raise NotAModel
        problem = not_finite(Packet(model))
        if problem:
            raise InputError(f"local training of the final model on {device} diverges: {problem}")
        return model

    def own_client(self) -> Client | None:
        """The method's client, if it makes a model from a model and nothing else; or None."""
        method = self.federation.method
        if not isinstance(method.server, Averaging | Momentum | Adaptive):
            return None  # what comes back may bear the names of the model and be something else: a change, a sum
        try:
            self.trained(method.client, self.devices[-1])  # the smallest of them
        except (NotAModel, KeyError):  # the second: it wants more than the model in its packet
            return None
        return method.client

    def local_models(self, task_name: str) -> tuple[dict[str, dict[str, Tensor]], bool]:
        """Device → the model that it would send next, and whether the method's own client trained it."""
        own = self.own_client()
        client = own or GradientClient()
        names = self.bar.track(self.devices, description=f"{task_name}: local training")
        return {name: self.trained(client, name) for name in names}, own is not None


def unlike(task: Task, weights: Weights) -> bool:
    """Whether these are not the weights of the task's model."""
    return {name: value.shape for name, value in weights.items()} != dict(task.model.shapes)


@contextmanager
def reopened(
    record: Record, folder: Path, given: Objects, most_devices: int, bar: Progress
) -> Iterator[Callable[[], Finished]]:
    """A function that sets up the run when it is first called; torch computes as it did in the run until the end."""
    with restore_torch_settings():
        yield cache(lambda: _reopen(record, folder, given, most_devices, bar))


def _reopen(record: Record, folder: Path, given: Objects, most_devices: int, bar: Progress) -> Finished:
    for part, name in record.objects.items():
        if getattr(given, part) is None:
            raise InputError(
                f"run '{record.run}' was given a {part} object ({name}); analyse it from Python: "
                f"ug.report.report(['{record.run}'], analyses=[...], {part}=...)"
            )
    # An object stands in only where the run had one: others of the same page may have named theirs.
    objects: dict[str, Any] = {part: getattr(given, part) for part in record.objects}
    result = load(record.run, str(folder), objects.get("model"))
    chosen = experiment(record.row["experiment"]["settings"])
    set_torch(chosen.run.precision != "float32", chosen.run.threads)
    federation = federate(_here(chosen), objects.get("method"), objects.get("data"), result.build)
    try:
        weights = safetensors.torch.load_file(result.folder / MODEL_FILE, device=federation.world.torch_device)
    except (OSError, SafetensorError) as error:
        raise InputError(f"the model of run '{record.run}' cannot be read: {error}") from None
    if unlike(federation.task, weights):
        raise InputError(f"'{result.folder / MODEL_FILE}' does not hold the weights of the run's model")
    problem = not_finite(Packet(weights))
    if problem:
        raise InputError(f"run '{record.run}' ended with a model that has diverged: {problem}")
    return Finished(federation, weights, chosen.run.seed, chosen.train.rounds, most_devices, bar)


def _here(chosen: Experiment) -> Experiment:
    """The experiment on one device of this machine; the run's, if this machine has it."""
    first = chosen.run.device.split(",")[0]
    try:
        device = torch_device(first)
    except InputError:
        device = "cpu"
    return chosen.model_copy(update={"run": chosen.run.model_copy(update={"engine": "serial", "device": device})})
