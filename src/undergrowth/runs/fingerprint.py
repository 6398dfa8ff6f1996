"""Fingerprints of data and of weights, to detect that a resumed run would get others than it began with."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import torch

from undergrowth.core import Task, Weights
from undergrowth.data import Population

MAX_SAMPLES_PER_SHARD = 1000  # samples whose values are used
TOLERANCE = 1e-4  # another machine may decode sound or images with other last digits


def fingerprint(population: Population) -> dict[str, Any]:
    """The sizes of all devices; labels, mean and standard deviation of the test set and the first device's samples."""
    sizes = [population.size(name) for name in population.devices]
    first = next(name for name, size in zip(population.devices, sizes, strict=True) if size)
    shards = population.central_test(), population.train(first)
    values = torch.cat([shard.x[:: 1 + len(shard) // MAX_SAMPLES_PER_SHARD].double().flatten() for shard in shards])
    return {
        "sizes": crc32(str(sizes).encode()),
        "labels": [crc32(shard.y.numpy().tobytes()) for shard in shards],
        "mean": float(values.mean()),
        "spread": float(values.std(correction=0)),
    }


def differ(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether two fingerprints belong to different data."""
    exact = any(before[name] != now[name] for name in ("sizes", "labels"))
    scale = TOLERANCE * (abs(before["mean"]) + before["spread"])
    return exact or not all(math.isclose(before[n], now[n], rel_tol=0, abs_tol=scale) for n in ("mean", "spread"))


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
