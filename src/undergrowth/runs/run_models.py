"""The models of a run at one moment: which there are, and how they score on test samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from undergrowth.core import (
    CODE_ERRORS,
    InputError,
    Method,
    ModelWeights,
    RunError,
    Shard,
    State,
    Task,
    TaskKind,
    Weights,
    describe_error,
    personal_model,
)
from undergrowth.data import Population
from undergrowth.engines.vector.stacked_loops import run_in_stacks
from undergrowth.engines.vector.stacked_steps import StackedSteps
from undergrowth.learning.reference import STATISTICS, measure_models
from undergrowth.runs.evaluation import Measured, evaluate, measure_samples, score

DeviceMetrics = dict[str, dict[str, float | None]]  # device → metrics; None: not defined for its samples

MAX_EVALUATED_DEVICES = 1000  # of more devices, evenly spaced ones are evaluated
MAX_DEVICES_PER_PASS = 64
CPU_BYTES_PER_PASS = 2**24  # of models that are evaluated together
GPU_BYTES_PER_PASS = 2**30


@dataclass(frozen=True)
class RunModels:
    """The models that a method has, given the state of the root and what the devices keep."""

    method: Method
    task: Task
    state: State  # of the root
    own: Mapping[str, State]  # device → its own state

    def named(self) -> Mapping[str, Weights | ModelWeights]:
        """What `method.models` returns. Raises an error of one sentence if it fails or returns no model."""
        with self._explained("models"):
            models = self.method.models(self.task, self.state, self.own)
        if not isinstance(models, Mapping) or not models:
            name = type(self.method).__name__
            raise InputError(f"method: {name}.models must return at least one model by name, not {models}")
        return models

    def personal(self, device: str) -> Weights | ModelWeights:
        """What `method.personal` returns for a device."""
        return personal_model(self.method, self.task, self.state, self.own.get(device, {}), device)

    def score(self, test: Shard, test_groups: Mapping[str, Tensor] | None = None) -> dict[str, float]:
        """The metrics and the loss of the run, and the mean main metric of each group of models that the method names.

        The model "global" decides about the run; without it, the mean over all models does. Models that are named like
        devices are one group. `test_groups`: the positions of the test samples of each group, for an ensemble.
        """
        kind, models = self.task.kind, self.named()
        scores = {name: evaluate(kind, *with_model(self.task, weights, name), test) for name, weights in models.items()}
        main, groups = kind.metric.name, dict[str, list[float]]()
        for name, found in scores.items():
            groups.setdefault("devices" if name in self.own else name.partition("/")[0], []).append(found[main])
        deciding = [scores["global"]] if "global" in scores else list(scores.values())
        means = {name: float(np.mean([each[name] for each in deciding])) for name in deciding[0]}
        others = {f"{main}/{name}": float(np.mean(group)) for name, group in groups.items() if name != "global"}
        return {**means, **(others if len(groups) > 1 else {}), **self._score_ensemble(test, test_groups or {})}

    def _score_ensemble(self, test: Shard, test_groups: Mapping[str, Tensor]) -> dict[str, float]:
        """The metrics of the models of groups, each on the test samples of its group, over all these samples.

        If the groups of test samples are not known: the main metric of each model on all samples.
        """
        kind, main = self.task.kind, self.task.kind.metric.name
        with self._explained("ensemble"):
            models = self.method.ensemble(self.task, self.state)
            parts = {name: with_model(self.task, each, name) for name, each in models.items()}
        if not parts:
            return {}
        known = {name: positions for name, positions in test_groups.items() if name in parts}
        if not known:
            return {f"{main}/group-{name}": evaluate(kind, *each, test)[main] for name, each in parts.items()}
        shards = {name: test.take(positions) for name, positions in known.items()}
        measured = [measure_samples(kind, *parts[name], shard) for name, shard in shards.items()]
        outputs = [each.outputs for each in measured if each.outputs is not None]
        together = Measured(torch.cat([each.rows for each in measured]), torch.cat(outputs) if outputs else None)
        scores = score(kind, together, torch.cat([shard.y for shard in shards.values()]))
        return {f"{name}/ensemble": value for name, value in scores.items() if name != "loss"}

    def score_devices(self, population: Population, devices: Sequence[str] | None = None) -> DeviceMetrics:
        """The metrics of each device's model on its own test samples. Devices without test samples are left out.

        `devices`: those to evaluate; None: all.
        """
        task, metrics = self.task, DeviceMetrics()
        stacked = replace(task, run_loops=partial(run_in_stacks, StackedSteps(task, task.model.torch_device, None)))
        together = not (task.model.mixed or task.kind.own_metrics or hasattr(population, "test_weights"))
        own_models: dict[str, Weights] = {}  # of devices, to be computed together
        most = models_per_pass(task)
        for names, used in self._groups_by_model(population.devices if devices is None else devices):
            found = with_model(task, used, f"devices/{names[0]}")
            if len(names) > 1 or not together or found.model is not task.model:
                metrics.update(score_on_devices(task.kind, found, names, population))
                continue
            own_models[names[0]] = {name: found.weights[name] for name in task.model.shapes}
            if len(own_models) >= most:
                metrics.update(_score_own_models(stacked, own_models, population))
                own_models = {}
        metrics.update(_score_own_models(stacked, own_models, population))
        return metrics

    def _groups_by_model(self, devices: Sequence[str]) -> Iterator[tuple[list[str], Weights | ModelWeights]]:
        """Groups of devices that use the same model, so that their samples can share a forward pass."""
        models = self.named()
        group: list[str] = []
        last: Weights | ModelWeights | None = None
        for name in devices:
            with self._explained("personal", name):
                weights = models.get(f"devices/{name}") or self.personal(name)
            if group and (weights is not last or len(group) >= MAX_DEVICES_PER_PASS):
                assert last is not None
                yield group, last
                group = []
            group.append(name)
            last = weights
        if last is not None:
            yield group, last

    @contextmanager
    def _explained(self, function: str, device: str = "") -> Iterator[None]:
        """Raises an exception of the method's code as a RunError of one sentence."""
        try:
            yield
        except (InputError, RunError):
            raise
        except CODE_ERRORS as error:
            where = f" for {device}" if device else ""
            raise RunError(f"{type(self.method).__name__}.{function} failed{where}: {describe_error(error)}") from error


def with_model(task: Task, weights: Weights | ModelWeights, name: str = "global") -> ModelWeights:
    """Weights together with their model: the run's, unless `weights` names another one.

    `name`: of the model, for the error if tensors are missing.
    """
    found = weights if isinstance(weights, ModelWeights) else ModelWeights(task.model, weights)
    missing = [each for each in found.model.shapes if each not in found.weights]
    if missing:
        raise InputError(
            f"method: the model '{name}' to evaluate lacks {len(missing)} of {len(found.model.shapes)} tensors, "
            f"such as '{missing[0]}'"
        )
    return found


def models_per_pass(task: Task) -> int:
    """How many models of devices are evaluated together."""
    room = CPU_BYTES_PER_PASS if torch.device(task.model.torch_device).type == "cpu" else GPU_BYTES_PER_PASS
    return max(1, room // (4 * sum(shape.numel() for shape in task.model.shapes.values())))


def some_devices(population: Population) -> Sequence[str]:
    """All devices; of more than MAX_EVALUATED_DEVICES, evenly spaced ones."""
    return population.devices[:: max(1, -(-len(population.devices) // MAX_EVALUATED_DEVICES))]


def score_on_devices(
    kind: TaskKind, used: ModelWeights, devices: Sequence[str], population: Population
) -> DeviceMetrics:
    """The metrics of one model on the test samples of each device that has any.

    A population with `test_weights` has the same test samples for all devices, and weights of them for each.
    """
    metrics: DeviceMetrics = {}
    if (test_weights := getattr(population, "test_weights", None)) is not None:
        owners = [name for name in devices if population.size(name) and len(population.test(name))]
        if not owners:
            return {}
        test = population.test(owners[0]).to(used.model.torch_device)
        statistics = measure_samples(kind, *used, test).rows[:, 2:].cpu()
        weighed = {name: (test_weights(name)[:, None] * statistics).sum(0) for name in owners}
        return {name: _finite(kind.scores(sums, test.y)) for name, sums in weighed.items()}
    for first in range(0, len(devices), MAX_DEVICES_PER_PASS):
        shards = own_test_samples(population, devices[first : first + MAX_DEVICES_PER_PASS])
        if not shards:
            continue
        test, sizes = _concatenate(shards.values(), used.model.torch_device)
        measured = measure_samples(kind, *used, test)
        for name, part, labels in zip(shards, measured.split(sizes), test.y.split(sizes), strict=True):
            metrics[name] = _finite(score(kind, part, labels))
    return metrics


def _score_own_models(task: Task, models: Mapping[str, Weights], population: Population) -> DeviceMetrics:
    """The metrics of devices with a model each. Many models are computed at once, if the model allows it."""
    shards = own_test_samples(population, list(models))
    if not shards:
        return {}
    test, sizes = _concatenate(shards.values(), task.model.torch_device)
    pairs = [Shard(*pair) for pair in zip(test.x.split(sizes), test.y.split(sizes), strict=True)]
    measured = measure_models(task, [models[name] for name in shards], pairs, statistics=True)
    sums = torch.stack([each[STATISTICS] for each in measured]).cpu()  # one transfer from a GPU
    scores = [task.kind.scores(*pair) for pair in zip(sums, test.y.cpu().split(sizes), strict=True)]
    return {name: _finite(each) for name, each in zip(shards, scores, strict=True)}


def own_test_samples(population: Population, devices: Sequence[str]) -> dict[str, Shard]:
    """The test samples of those `devices` that have any."""
    shards = {name: population.test(name) for name in devices}
    return {name: shard for name, shard in shards.items() if len(shard)}


def _concatenate(shards: Iterable[Shard], torch_device: str) -> tuple[Shard, list[int]]:
    """All samples as one shard on `torch_device`, and the number of samples of each shard."""
    parts = list(shards)
    x, y = (torch.cat([getattr(shard, part) for shard in parts]).to(torch_device) for part in ("x", "y"))
    return Shard(x, y), [len(shard) for shard in parts]


def _finite(scores: Mapping[str, float]) -> dict[str, float | None]:
    """The metrics without the loss. One that is not defined for the samples is None, such as r2 of a single sample."""
    return {name: value if isfinite(value) else None for name, value in scores.items() if name != "loss"}
