"""A fingerprint of the data, to detect that a resumed run would get other data than it began with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import torch

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
