"""Evaluates models on the central test set and on the test samples of each device."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F

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

BATCH = 512
MAX_EVALUATED_DEVICES = 1000  # of more devices, evenly spaced ones are evaluated
MAX_DEVICES_PER_PASS = 64


def score(model: Model, weights: Weights, shard: Shard) -> tuple[float, float]:
    """Accuracy and mean cross-entropy of a model on `shard`."""
    correct, loss = 0, 0.0
    with torch.no_grad():
        for start in range(0, len(shard), BATCH):
            y = shard.y[start : start + BATCH]
            logits = model(weights, shard.x[start : start + BATCH])
            correct += int((logits.argmax(1) == y).sum())
            loss += float(F.cross_entropy(logits, y, reduction="sum"))
    return correct / len(shard), loss / len(shard)


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
    method: Method, task: Task, state: State, own: Mapping[str, State], population: Population, torch_device: str
) -> dict[str, float]:
    """Accuracy of each device's model on its own test samples. Devices without test samples are left out."""
    accuracies: dict[str, float] = {}
    for names, used in _groups_by_model(method, task, state, own, population.devices):
        shards = {name: population.test(name) for name in names}
        shards = {name: shard for name, shard in shards.items() if len(shard)}
        if not shards:
            continue
        x = torch.cat([shard.x for shard in shards.values()]).to(torch_device)
        model, weights = with_model(task, used, f"devices/{names[0]}")
        with torch.no_grad():
            predictions = torch.cat([model(weights, part).argmax(1) for part in x.split(BATCH)]).cpu()
        sizes = [len(shard) for shard in shards.values()]
        for (name, shard), predicted in zip(shards.items(), predictions.split(sizes), strict=True):
            accuracies[name] = float((predicted == shard.y).float().mean())
    return accuracies


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
    step = max(1, -(-len(devices) // MAX_EVALUATED_DEVICES))
    models = evaluated_models(method, task, state, own)
    group: list[str] = []
    last: Weights | ModelWeights | None = None
    for name in devices[::step]:
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
