"""Evaluation: how good the models are, on the central test set and on every device's own test part."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from undergrowth.core import Fitted, Method, Model, Shard, State, Task, Weights
from undergrowth.data import Population

BATCH = 512
MOST_DEVICES = 1000  # devices whose own accuracy is measured; of more, evenly spaced ones


def score(model: Model, weights: Weights, shard: Shard) -> tuple[float, float]:
    """Accuracy and mean cross-entropy."""
    correct, loss = 0, 0.0
    with torch.no_grad():
        for start in range(0, len(shard), BATCH):
            y = shard.y[start : start + BATCH]
            logits = model(weights, shard.x[start : start + BATCH])
            correct += int((logits.argmax(1) == y).sum())
            loss += float(F.cross_entropy(logits, y, reduction="sum"))
    return correct / len(shard), loss / len(shard)


def score_all(method: Method, task: Task, state: State, own: Mapping[str, State], test: Shard) -> dict[str, float]:
    """Accuracy and loss of the run, and of every model or group of models that the method names besides "global"."""
    models = method.models(task, state, own)
    scores = {name: score(*fitted(task, weights), test) for name, weights in models.items()}
    if "global" in scores:
        groups: dict[str, list[float]] = {}
        for name, (accuracy, _) in scores.items():
            groups.setdefault(name.partition("/")[0], []).append(accuracy)
        others = {f"accuracy/{name}": float(np.mean(group)) for name, group in groups.items() if name != "global"}
        return {**dict(zip(("accuracy", "loss"), scores["global"])), **others}
    accuracies, losses = zip(*scores.values())
    return {"accuracy": float(np.mean(accuracies)), "loss": float(np.mean(losses))}


def score_devices(
    method: Method, task: Task, state: State, own: Mapping[str, State], population: Population, device: str
) -> dict[str, float]:
    """Accuracy of the model that each device would use, on its own test part; devices without one are left out."""
    accuracies: dict[str, float] = {}
    for names, used in _by_model(method, task, state, own, population.devices):
        shards = {name: population.test(name) for name in names}
        shards = {name: shard for name, shard in shards.items() if len(shard)}
        if not shards:
            continue
        x = torch.cat([shard.x for shard in shards.values()]).to(device)
        model, weights = fitted(task, used)
        with torch.no_grad():
            guesses = torch.cat([model(weights, part).argmax(1) for part in x.split(BATCH)]).cpu()
        for (name, shard), guess in zip(shards.items(), guesses.split([len(s) for s in shards.values()])):
            accuracies[name] = float((guess == shard.y).float().mean())
    return accuracies


def fitted(task: Task, weights: Weights | Fitted) -> Fitted:
    """Weights with the model that they are of."""
    return weights if isinstance(weights, Fitted) else Fitted(task.model, weights)


def _by_model(
    method: Method, task: Task, state: State, own: Mapping[str, State], devices: Sequence[str]
) -> Iterator[tuple[list[str], Weights | Fitted]]:
    """Devices that use the same model, some at a time, so that their samples can share a forward pass."""
    step = max(1, -(-len(devices) // MOST_DEVICES))
    models = method.models(task, state, own)
    together: list[str] = []
    last: Weights | Fitted | None = None
    for name in devices[::step]:
        weights = models.get(f"devices/{name}") or method.personal(task, state, own.get(name, {}))
        if together and (weights is not last or len(together) >= 64):
            assert last is not None
            yield together, last
            together = []
        together.append(name)
        last = weights
    if last is not None:
        yield together, last


def digest(weights: Weights) -> str:
    """SHA-256 over the tensors, by sorted name, as raw little-endian bytes."""
    total = hashlib.sha256()
    for name in sorted(weights):
        values = weights[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        if sys.byteorder == "big":
            values = values.reshape(-1, weights[name].element_size())[:, ::-1].copy()
        total.update(values.tobytes())
    return total.hexdigest()
