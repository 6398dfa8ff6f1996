"""Evaluates models on the central test set and on the test samples of each device."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.core import (
    InputError,
    Method,
    Model,
    ModelWeights,
    RunError,
    Shard,
    State,
    Task,
    Weights,
    describe_error,
    personal_model,
)
from undergrowth.data import Population
from undergrowth.engines.processes.engine import cores

Batch = TypeVar("Batch")

CPU_BATCH = 128  # activations of larger batches leave the cache of a core
GPU_BATCH = 512
MAX_EVALUATED_DEVICES = 1000  # of more devices, evenly spaced ones are evaluated
MAX_DEVICES_PER_PASS = 64


def score(model: Model, weights: Weights, shard: Shard) -> tuple[float, float]:
    """Accuracy and mean cross-entropy of a model on `shard`."""
    batches = zip(_batches(shard.x), _batches(shard.y), strict=True)

    def add_up(model: Model, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        logits = model(weights, x)
        loss = F.cross_entropy(logits, y, reduction="sum")
        return torch.stack([(logits.argmax(1) == y).sum().double(), loss.double()])

    sums = torch.stack(_for_each_batch(model, list(batches), add_up)).tolist()  # the only wait for a GPU
    correct, loss = (sum(column) for column in zip(*sums, strict=True))
    return correct / len(shard), loss / len(shard)


def _batches(values: Tensor) -> Sequence[Tensor]:
    return torch.split(values, GPU_BATCH if values.is_cuda else CPU_BATCH)


def _for_each_batch(model: Model, batches: Sequence[Batch], work: Callable[[Model, Batch], Tensor]) -> list[Tensor]:
    """The results of `work(model, batch)`, in the order of the batches; on a CPU, all cores share the batches.

    The batches and the arithmetic of each, on one thread, do not depend on the number of cores; so neither do the bits.
    """
    threads = min(cores(), len(batches)) if model.torch_device == "cpu" else 1
    if threads == 1:
        return _in_turn(model, batches, work)
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=partial(torch.set_num_threads, 1)) as pool:
            # A model writes the weights into its module while it runs, so every thread needs a module of its own.
            shares = [
                pool.submit(_in_turn, model.for_another_thread(), batches[first::threads], work)
                for first in range(threads)
            ]
            by_thread = [share.result() for share in shares]
    finally:
        torch.set_num_threads(before)  # the threads have changed the setting of MKL, which is one for all
    return [by_thread[place % threads][place // threads] for place in range(len(batches))]


@torch.no_grad()
def _in_turn(model: Model, batches: Sequence[Batch], work: Callable[[Model, Batch], Tensor]) -> list[Tensor]:
    # On a GPU in the precision of the training; a CPU is not faster in bfloat16.
    reduced = model.mixed and model.torch_device != "cpu"
    with torch.autocast(torch.device(model.torch_device).type, torch.bfloat16) if reduced else nullcontext():
        return [work(model, batch) for batch in batches]


def score_all(method: Method, task: Task, state: State, own: Mapping[str, State], test: Shard) -> dict[str, float]:
    """Accuracy and loss of the run, and the mean accuracy of each group of models that the method names.

    The model "global" decides about the run; without it, the mean over all models does. Models that are named like
    devices are one group.
    """
    models = evaluated_models(method, task, state, own)
    scores = {name: score(*with_model(task, weights, name), test) for name, weights in models.items()}
    groups: dict[str, list[float]] = {}
    for name, (accuracy, _) in scores.items():
        groups.setdefault("devices" if name in own else name.partition("/")[0], []).append(accuracy)
    deciding = [scores["global"]] if "global" in scores else list(scores.values())
    accuracy, loss = (float(np.mean(values)) for values in zip(*deciding, strict=True))
    others = {f"accuracy/{name}": float(np.mean(group)) for name, group in groups.items() if name != "global"}
    return {"accuracy": accuracy, "loss": loss, **(others if len(groups) > 1 else {})}


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
    except Exception as error:
        where = f" for {device}" if device else ""
        raise RunError(f"{type(method).__name__}.{function} failed{where}: {describe_error(error)}") from error


def score_devices(
    method: Method,
    task: Task,
    state: State,
    own: Mapping[str, State],
    population: Population,
    torch_device: str,
    limit: int | None = MAX_EVALUATED_DEVICES,
) -> dict[str, float]:
    """Accuracy of each device's model on its own test samples. Devices without test samples are left out.

    `limit`: of more devices, evenly spaced ones are evaluated; None: all.
    """
    accuracies: dict[str, float] = {}
    devices = population.devices[:: 1 if limit is None else max(1, -(-len(population.devices) // limit))]
    for names, used in _groups_by_model(method, task, state, own, devices):
        found = with_model(task, used, f"devices/{names[0]}")
        accuracies.update(score_on_devices(found, names, population, torch_device))
    return accuracies


def score_on_devices(
    found: ModelWeights, devices: Sequence[str], population: Population, torch_device: str
) -> dict[str, float]:
    """Accuracy of one model on the test samples of each device that has any."""
    accuracies: dict[str, float] = {}
    for first in range(0, len(devices), MAX_DEVICES_PER_PASS):
        shards = {name: population.test(name) for name in devices[first : first + MAX_DEVICES_PER_PASS]}
        shards = {name: shard for name, shard in shards.items() if len(shard)}
        if not shards:
            continue
        x = torch.cat([shard.x for shard in shards.values()]).to(torch_device)
        predictions = torch.cat(_for_each_batch(found.model, _batches(x), partial(_predict, found.weights))).cpu()
        sizes = [len(shard) for shard in shards.values()]
        for (name, shard), predicted in zip(shards.items(), predictions.split(sizes), strict=True):
            accuracies[name] = float((predicted == shard.y).float().mean())
    return accuracies


def _predict(weights: Weights, model: Model, x: Tensor) -> Tensor:
    return model(weights, x).argmax(1)


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
