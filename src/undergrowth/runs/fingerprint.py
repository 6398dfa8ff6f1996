"""Whether a run that goes on has the data that it began with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import torch

from undergrowth.data import Population

SOME = 1000  # samples of a shard whose values are looked at
NEAR = 1e-4  # another machine may read sound or images with other last digits


def fingerprint(population: Population) -> dict[str, Any]:
    """How many samples the devices have, and what the test set and the first device's samples are like."""
    sizes = [population.size(name) for name in population.devices]
    first = next(name for name, size in zip(population.devices, sizes) if size)
    shards = population.central_test(), population.train(first)
    values = torch.cat([shard.x[:: 1 + len(shard) // SOME].double().flatten() for shard in shards])
    return {
        "sizes": crc32(str(sizes).encode()),
        "labels": [crc32(shard.y.numpy().tobytes()) for shard in shards],
        "mean": float(values.mean()),
        "spread": float(values.std(correction=0)),
    }


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether two fingerprints are of different data."""
    exact = any(before[name] != now[name] for name in ("sizes", "labels"))
    scale = NEAR * (abs(before["mean"]) + before["spread"])
    return exact or not all(math.isclose(before[n], now[n], rel_tol=0, abs_tol=scale) for n in ("mean", "spread"))
