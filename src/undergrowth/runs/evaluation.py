"""Evaluates models on the central test set and on the test samples of each device."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from undergrowth.core import (
    CODE_ERRORS,
    InputError,
    Method,
    Model,
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
from undergrowth.engines.processes.engine import cores
from undergrowth.engines.vector.stacked_loops import run_in_stacks
from undergrowth.engines.vector.stacked_steps import StackedSteps
from undergrowth.learning.reference import STATISTICS, measure_models
from undergrowth.runs.own_task import measure

Batch = TypeVar("Batch")
Found = TypeVar("Found")
DeviceMetrics = dict[str, dict[str, float | None]]  # device → metrics; None: not defined for its samples

BATCHES_PER_THREAD = 4  # starting a thread takes as long as a batch of a small model
CPU_BATCH = 128  # activations of larger batches leave the cache of a core
GPU_BATCH = 512
MAX_EVALUATED_DEVICES = 1000  # of more devices, evenly spaced ones are evaluated
MAX_DEVICES_PER_PASS = 64
CPU_BYTES_PER_PASS = 2**24  # of models that are evaluated together
GPU_BYTES_PER_PASS = 2**30


class Measured(NamedTuple):
    """What the metrics of some samples are computed from, with a row for each sample."""

    rows: Tensor  # loss, what the sample counts in the mean loss, and the statistics of the task
    outputs: Tensor | None  # only if the user's metrics need them

    def split(self, sizes: Sequence[int]) -> list[Measured]:
        """The parts that belong to several shards."""
        outputs = [None] * len(sizes) if self.outputs is None else self.outputs.split(sizes)
        return [Measured(*part) for part in zip(self.rows.split(sizes), outputs, strict=True)]


def measure_samples(kind: TaskKind, model: Model, weights: Weights, x: Tensor, y: Tensor) -> Measured:
    """Runs the model on all samples."""

    def work(model: Model, batch: tuple[Tensor, Tensor]) -> Measured:
        outputs, labels = model(weights, batch[0]), batch[1]
        values, counts = kind.losses(outputs, labels)
        losses = torch.stack([values, torch.ones_like(values) if counts is None else counts], 1)
        rows = torch.cat([losses.double(), kind.statistics(outputs, labels)], 1)
        return Measured(rows, outputs if kind.own_metrics else None)

    batches = list(zip(_batches(x), _batches(y), strict=True))
    found = _for_each_batch(model, batches, work)
    outputs = torch.cat([each.outputs for each in found if each.outputs is not None]) if kind.own_metrics else None
    return Measured(torch.cat([each.rows for each in found]), outputs)


def score(kind: TaskKind, measured: Measured, labels: Tensor) -> dict[str, float]:
    """The metrics of samples, those of the user, and the mean loss."""
    sums = measured.rows.sum(0).cpu()  # the only wait for a GPU, unless the labels or the user's metrics need another
    loss, count = sums[:2].tolist()
    scores = kind.scores(sums[2:], labels)
    if measured.outputs is not None:
        pair = kind.aligned(measured.outputs, labels)
        scores |= {name: measure(name, function, *pair) for name, function in kind.own_metrics.items()}
    return {**scores, "loss": loss / max(count, 1)}


def evaluate(kind: TaskKind, model: Model, weights: Weights, shard: Shard) -> dict[str, float]:
    """The metrics of a model on `shard`, those of the user, and the mean loss."""
    return score(kind, measure_samples(kind, model, weights, shard.x, shard.y), shard.y)


def _batches(values: Tensor) -> Sequence[Tensor]:
    return torch.split(values, GPU_BATCH if values.is_cuda else CPU_BATCH)


def _for_each_batch(model: Model, batches: Sequence[Batch], work: Callable[[Model, Batch], Found]) -> list[Found]:
    """The results of `work(model, batch)`, in the order of the batches; on a CPU, all cores share the batches.

    The batches and the arithmetic of each, on one thread, do not depend on the number of cores; so neither do the bits.
    """
    if model.torch_device != "cpu":
        return _in_turn(model, batches, work)
    threads = max(1, min(cores(), len(batches) // BATCHES_PER_THREAD))
    before = torch.get_num_threads()
    try:
        if threads == 1:
            torch.set_num_threads(1)
            return _in_turn(model, batches, work)
        with ThreadPoolExecutor(threads, initializer=partial(torch.set_num_threads, 1)) as pool:
            # A model writes the weights into its module while it runs, so every thread needs a module of its own.
            futures = [
                pool.submit(_in_turn, model.for_another_thread(), batches[first::threads], work)
                for first in range(threads)
            ]
            by_thread = [future.result() for future in futures]
    finally:
        torch.set_num_threads(before)  # the threads have changed the setting of MKL, which is one for all
    return [by_thread[place % threads][place // threads] for place in range(len(batches))]


@torch.no_grad()
def _in_turn(model: Model, batches: Sequence[Batch], work: Callable[[Model, Batch], Found]) -> list[Found]:
    # On a GPU in the precision of the training; a CPU is not faster in bfloat16.
    reduced = model.mixed and model.torch_device != "cpu"
    with torch.autocast(torch.device(model.torch_device).type, torch.bfloat16) if reduced else nullcontext():
        return [work(model, batch) for batch in batches]


def score_all(
    method: Method,
    task: Task,
    state: State,
    own: Mapping[str, State],
    test: Shard,
    test_groups: Mapping[str, Tensor] | None = None,
) -> dict[str, float]:
    """The metrics and the loss of the run, and the mean main metric of each group of models that the method names.

    The model "global" decides about the run; without it, the mean over all models does. Models that are named like
    devices are one group. `test_groups`: the positions of the test samples of each group, for an ensemble.
    """
    models, kind = evaluated_models(method, task, state, own), task.kind
    scores = {name: evaluate(kind, *with_model(task, weights, name), test) for name, weights in models.items()}
    main, groups = kind.metric.name, dict[str, list[float]]()
    for name, found in scores.items():
        groups.setdefault("devices" if name in own else name.partition("/")[0], []).append(found[main])
    deciding = [scores["global"]] if "global" in scores else list(scores.values())
    means = {name: float(np.mean([each[name] for each in deciding])) for name in deciding[0]}
    others = {f"{main}/{name}": float(np.mean(group)) for name, group in groups.items() if name != "global"}
    return {**means, **(others if len(groups) > 1 else {}), **_score_ensemble(method, task, state, test, test_groups)}


def _score_ensemble(
    method: Method, task: Task, state: State, test: Shard, test_groups: Mapping[str, Tensor] | None
) -> dict[str, float]:
    """The metrics of the models of groups, each on the test samples of its group, over all these samples.

    If the groups of test samples are not known: the main metric of each model on all samples.
    """
    kind, main = task.kind, task.kind.metric.name
    with _explained(method, "ensemble"):
        parts = {name: with_model(task, each, name) for name, each in method.ensemble(task, state).items()}
    if not parts:
        return {}
    known = {name: positions for name, positions in (test_groups or {}).items() if name in parts}
    if not known:
        return {f"{main}/group-{name}": evaluate(kind, *each, test)[main] for name, each in parts.items()}
    shards = {name: test.take(positions) for name, positions in known.items()}
    measured = [measure_samples(kind, *parts[name], shard.x, shard.y) for name, shard in shards.items()]
    outputs = [each.outputs for each in measured if each.outputs is not None]
    together = Measured(torch.cat([each.rows for each in measured]), torch.cat(outputs) if outputs else None)
    scores = score(kind, together, torch.cat([shard.y for shard in shards.values()]))
    return {f"{name}/ensemble": value for name, value in scores.items() if name != "loss"}


def evaluated_models(
    method: Method, task: Task, state: State, own: Mapping[str, State]
) -> Mapping[str, Weights | ModelWeights]:
    """What `method.models` returns. Raises an error of one sentence if it fails or returns no model."""
    with _explained(method, "models"):
        models = method.models(task, state, own)
    if not isinstance(models, Mapping) or not models:
        raise InputError(f"method: {type(method).__name__}.models must return at least one model by name, not {models}")
    return models


@contextmanager
def _explained(method: Method, function: str, device: str = "") -> Iterator[None]:
    """Raises an exception of the method's code as a RunError of one sentence."""
    try:
        yield
    except (InputError, RunError):
        raise
    except CODE_ERRORS as error:
        where = f" for {device}" if device else ""
        raise RunError(f"{type(method).__name__}.{function} failed{where}: {describe_error(error)}") from error


def score_devices(
    method: Method,
    task: Task,
    state: State,
    own: Mapping[str, State],
    population: Population,
    torch_device: str,
    devices: Sequence[str] | None = None,
) -> DeviceMetrics:
    """The metrics of each device's model on its own test samples. Devices without test samples are left out.

    `devices`: those to evaluate; None: all.
    """
    metrics: DeviceMetrics = {}
    stacked = replace(task, run_loops=partial(run_in_stacks, StackedSteps(task, torch_device, None)))
    together = not (task.model.mixed or task.kind.own_metrics or hasattr(population, "test_weights"))
    own_models: dict[str, Weights] = {}  # of devices, to be computed together
    most = models_per_pass(task, torch_device)
    for names, used in _groups_by_model(method, task, state, own, population.devices if devices is None else devices):
        found = with_model(task, used, f"devices/{names[0]}")
        if len(names) > 1 or not together or found.model is not task.model:
            metrics.update(score_on_devices(task.kind, found, names, population, torch_device))
            continue
        own_models[names[0]] = {name: found.weights[name] for name in task.model.shapes}
        if len(own_models) >= most:
            metrics.update(_score_own_models(stacked, own_models, population, torch_device))
            own_models = {}
    metrics.update(_score_own_models(stacked, own_models, population, torch_device))
    return metrics


def models_per_pass(task: Task, torch_device: str) -> int:
    """How many models of devices are evaluated together."""
    room = CPU_BYTES_PER_PASS if torch.device(torch_device).type == "cpu" else GPU_BYTES_PER_PASS
    return max(1, room // (4 * sum(shape.numel() for shape in task.model.shapes.values())))


def some_devices(population: Population) -> Sequence[str]:
    """All devices; of more than MAX_EVALUATED_DEVICES, evenly spaced ones."""
    return population.devices[:: max(1, -(-len(population.devices) // MAX_EVALUATED_DEVICES))]


def _score_own_models(
    task: Task, models: Mapping[str, Weights], population: Population, torch_device: str
) -> DeviceMetrics:
    """The metrics of devices with a model each. Many models are computed at once, if the model allows it."""
    shards = {name: population.test(name) for name in models}
    shards = {name: shard for name, shard in shards.items() if len(shard)}
    if not shards:
        return {}
    sizes = [len(shard) for shard in shards.values()]
    x, y = (torch.cat([getattr(each, part) for each in shards.values()]).to(torch_device) for part in ("x", "y"))
    pairs = [Shard(*pair) for pair in zip(x.split(sizes), y.split(sizes), strict=True)]
    measured = measure_models(task, [models[name] for name in shards], pairs, statistics=True)
    sums = torch.stack([each[STATISTICS] for each in measured]).cpu()  # one transfer from a GPU
    scores = [task.kind.scores(*pair) for pair in zip(sums, y.cpu().split(sizes), strict=True)]
    return {name: _finite(each) for name, each in zip(shards, scores, strict=True)}


def _finite(scores: Mapping[str, float]) -> dict[str, float | None]:
    """The metrics without the loss. One that is not defined for the samples is None, such as r2 of a single sample."""
    return {name: value if isfinite(value) else None for name, value in scores.items() if name != "loss"}


def score_on_devices(
    kind: TaskKind, used: ModelWeights, devices: Sequence[str], population: Population, torch_device: str
) -> DeviceMetrics:
    """The metrics of one model on the test samples of each device that has any.

    A population with `test_weights` has the same test samples for all devices, and weights of them for each.
    """
    metrics: DeviceMetrics = {}
    if (test_weights := getattr(population, "test_weights", None)) is not None:
        owners = [name for name in devices if population.size(name) and len(population.test(name))]
        if not owners:
            return {}
        test = population.test(owners[0]).to(torch_device)
        statistics = measure_samples(kind, used.model, used.weights, test.x, test.y).rows[:, 2:].cpu()
        weighed = {name: (test_weights(name)[:, None] * statistics).sum(0) for name in owners}
        return {name: _finite(kind.scores(sums, test.y)) for name, sums in weighed.items()}
    for first in range(0, len(devices), MAX_DEVICES_PER_PASS):
        shards = {name: population.test(name) for name in devices[first : first + MAX_DEVICES_PER_PASS]}
        shards = {name: shard for name, shard in shards.items() if len(shard)}
        if not shards:
            continue
        x, y = (torch.cat([getattr(shard, part) for shard in shards.values()]).to(torch_device) for part in ("x", "y"))
        measured = measure_samples(kind, used.model, used.weights, x, y)
        sizes = [len(shard) for shard in shards.values()]
        for name, part, labels in zip(shards, measured.split(sizes), y.split(sizes), strict=True):
            metrics[name] = _finite(score(kind, part, labels))
    return metrics


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


def _groups_by_model(
    method: Method, task: Task, state: State, own: Mapping[str, State], devices: Sequence[str]
) -> Iterator[tuple[list[str], Weights | ModelWeights]]:
    """Groups of devices that use the same model, so that their samples can share a forward pass."""
    models = evaluated_models(method, task, state, own)
    group: list[str] = []
    last: Weights | ModelWeights | None = None
    for name in devices:
        with _explained(method, "personal", name):
            weights = models.get(f"devices/{name}") or personal_model(method, task, state, own.get(name, {}), name)
        if group and (weights is not last or len(group) >= MAX_DEVICES_PER_PASS):
            assert last is not None
            yield group, last
            group = []
        group.append(name)
        last = weights
    if last is not None:
        yield group, last


def frozen_digest(task: Task) -> str | None:
    """The digest of the tensors that the run's models hold beside their weights; None if there are none."""
    models = {"": task.model, **task.ladder}
    tensors = {f"{name}/{key}": value for name, model in models.items() for key, value in model.constants.items()}
    return digest(tensors) if tensors else None


def digest(weights: Weights) -> str:
    """SHA-256 over the tensors, by sorted name, as raw little-endian bytes."""
    hashed = hashlib.sha256()
    for name in sorted(weights):
        values = weights[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        if sys.byteorder == "big":
            values = values.reshape(-1, weights[name].element_size())[:, ::-1].copy()
        hashed.update(values.tobytes())
    return hashed.hexdigest()
