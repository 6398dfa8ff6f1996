"""A finished run, rebuilt with its federation and its final model, so that analyses can compute with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from rich.progress import Progress
from safetensors import SafetensorError
from torch import Tensor, nn

from undergrowth.core import Client, Context, InputError, Method, Packet, Shard, Task, Weights, find_non_finite
from undergrowth.data import Dataset, Population
from undergrowth.engines import set_torch
from undergrowth.learning import AveragingServer, GradientClient
from undergrowth.methods.fedavgm import MomentumServer
from undergrowth.methods.fedopt import AdaptiveServer
from undergrowth.report.run_record import RunRecord
from undergrowth.runs.config import Experiment
from undergrowth.runs.engine_builder import check_torch_device
from undergrowth.runs.federation import Federation
from undergrowth.runs.federation_builder import federate
from undergrowth.runs.result import load
from undergrowth.runs.store import MODEL_FILE
from undergrowth.runs.stored_experiment import stored_experiment

MAX_TEST_SAMPLES = 2048  # of a larger central test set, a random sample is used


class NotAModelError(Exception):
    """The upload of a client is neither a model nor a part of one."""


@dataclass(frozen=True)
class UserObjects:
    """Python objects that the run was given, and that are needed to rebuild it."""

    method: Method | None = None
    data: Dataset | Population | None = None
    model: Callable[[], nn.Module] | None = None


@dataclass(frozen=True)
class ReopenedRun:
    """A rebuilt run. All randomness of analyses comes from its seed, so that numbers are reproducible."""

    federation: Federation
    weights: Weights
    seed: int
    rounds: int
    max_devices: int
    progress: Progress

    @property
    def task(self) -> Task:
        return self.federation.task

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels of the model, lowest first."""
        model = self.task.model
        if not model.levels:
            raise InputError(f"features need a model with levels; name submodules of {type(model.module).__name__}")
        # Several levels of a small model can be at the same place; the last of them is used.
        names = {name: level for level, name in model.levels.items()}
        return tuple(sorted(names.values(), key=model.position))

    @property
    def population(self) -> Population:
        """The data of the last round."""
        return self.federation.population_at(self.rounds - 1)

    @property
    def devices(self) -> list[str]:
        """The devices with the most samples, largest first."""
        population = self.population
        sizes = {name: population.size(name) for name in population.devices}
        able = [name for name, size in sizes.items() if size >= self.task.model.smallest_batch()]
        return sorted(able, key=lambda name: (-sizes[name], name))[: self.max_devices]

    def context(self, node: str) -> Context:
        """The context of the last round, so that a learning rate schedule has its final value."""
        return Context(self.seed, node, self.rounds - 1)

    def shard(self, device: str) -> Shard:
        return self.population.train(device).to(self.federation.world.torch_device)

    def test_samples(self) -> Shard:
        """Samples of the central test set in random order, because data files may be sorted by class."""
        test = self.federation.test
        order = torch.randperm(len(test), generator=self.context("analysis").generator("test"))[:MAX_TEST_SAMPLES]
        return test.take(order.to(test.y.device))

    def class_names(self) -> list[str]:
        names = getattr(getattr(self.federation.population, "dataset", None), "class_names", ())
        return [str(name) for name in names] or [str(number) for number in range(self.task.classes)]

    def train_locally(self, client: Client, device: str) -> dict[str, Tensor]:
        """The final model after one local training by `client` on the samples of `device`."""
        up, _ = client.local(self.task, Packet(self.weights), self.shard(device), {}, self.context(device))
        model = {**self.weights, **up.tensors}
        if not fits_model(self.task, model):
            raise NotAModelError
        problem = find_non_finite(Packet(model))
        if problem:
            raise InputError(f"local training of the final model on {device} diverges: {problem}")
        return model

    def method_client(self) -> Client | None:
        """The client of the method, if it can train the model without anything else; otherwise None."""
        method = self.federation.method
        if not isinstance(method.server, AveragingServer | MomentumServer | AdaptiveServer):
            return None  # an upload with the tensor names of the model may hold a difference or a sum instead
        try:
            self.train_locally(method.client, self.devices[-1])  # the smallest device is the fastest to try
        except (NotAModelError, KeyError):  # KeyError: the client needs more than the model in its download
            return None
        return method.client

    def local_models(self, analysis: str) -> tuple[dict[str, dict[str, Tensor]], bool]:
        """Device → its model after local training, and whether the client of the method trained it."""
        method_client = self.method_client()
        client = method_client or GradientClient()
        devices = self.progress.track(self.devices, description=f"{analysis}: local training")
        return {name: self.train_locally(client, name) for name in devices}, method_client is not None


def fits_model(task: Task, weights: Weights) -> bool:
    """Whether `weights` have the names and shapes of the task's model."""
    return {name: value.shape for name, value in weights.items()} == dict(task.model.shapes)


def reopen_run(
    record: RunRecord, folder: Path, given: UserObjects, max_devices: int, progress: Progress
) -> ReopenedRun:
    """Rebuild a finished run in `folder`. Changes torch's settings to those of the run."""
    # The loss and the metrics of the user are not needed: the weights are final.
    used = {part: name for part, name in record.objects.items() if part in ("method", "data", "model")}
    for part, name in used.items():
        if getattr(given, part) is None:
            raise InputError(
                f"run '{record.run}' was given a {part} object ({name}); analyse it from Python: "
                f"ug.report.write_report(['{record.run}'], analyses=[...], {part}=...)"
            )
    # An object is used only for runs that were given one; other runs of the same call name theirs.
    objects: dict[str, Any] = {part: getattr(given, part) for part in used}
    result = load(record.run, str(folder), objects.get("model"))
    experiment = stored_experiment(record.row)
    set_torch(experiment.run.precision != "float32", experiment.run.threads)
    federation = federate(_on_this_machine(experiment), objects.get("method"), objects.get("data"), result.build)
    path = result.folder / MODEL_FILE
    try:
        weights = safetensors.torch.load_file(path, device=federation.world.torch_device)
    except (OSError, SafetensorError) as error:
        raise InputError(f"the model of run '{record.run}' cannot be read: {error}") from None
    for name, value in federation.task.model.constants.items():
        if name in weights and weights[name].shape == value.shape:  # what is frozen may be pretrained
            value.copy_(weights.pop(name))
    if not fits_model(federation.task, weights):
        raise InputError(f"'{path}' does not hold the weights of the run's model")
    problem = find_non_finite(Packet(weights))
    if problem:
        raise InputError(f"the final model of run '{record.run}' has diverged: {problem}")
    return ReopenedRun(federation, weights, experiment.run.seed, result.summary["rounds"], max_devices, progress)


def _on_this_machine(experiment: Experiment) -> Experiment:
    """The experiment with the serial engine on the first torch device of the run, or on the CPU without that device."""
    try:
        name = check_torch_device(experiment.run.device.split(",")[0])
    except InputError:
        name = "cpu"
    # The final weights replace those that the run started from. Nothing is decided by a metric any more.
    task = experiment.task.model_copy(update={"main": None, "better": None})
    return experiment.with_run(engine="serial", device=name).starting_from(None).model_copy(update={"task": task})
