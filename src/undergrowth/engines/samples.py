"""The devices' training samples, where their jobs run."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from undergrowth.core import Shard
from undergrowth.engines.states import room

THREADS = 4
SMALL = 1 << 20  # bytes that one thread has copied before others have begun


class Shards(Protocol):
    """Where the training samples of a device come from."""

    def train(self, device: str) -> Shard: ...

    def size(self, device: str) -> int: ...


class Samples:
    """On a GPU they stay, as long as there is room."""

    def __init__(self, shards: Shards, place: str) -> None:
        self._shards = shards
        self._place = place
        self._cuda = torch.device(place).type == "cuda"
        self._near: dict[str, Shard] = {}
        self._left: int | None = None  # bytes that there is room for; None: nobody has looked

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(THREADS)

    def of(self, device: str) -> Shard:
        self.bring([device])
        near = self._near.get(device)
        return self._shards.train(device).to(self._place) if near is None else near

    def bring(self, devices: Sequence[str]) -> None:
        """Gets those that will be asked for next, all at once."""
        missing = [device for device in devices if device not in self._near] if self._cuda else []
        if not missing:
            return
        if self._left is None:
            self._left = room(self._place)
        shards: list[Shard] = []
        for device in missing:
            if self._left <= 0:
                break
            shards.append(self._shards.train(device))
            self._left -= shards[-1].x.nbytes + shards[-1].y.nbytes
        if shards and all(_alike(shard, shards[0]) for shard in shards):
            # In one piece, from memory that a GPU reads by itself: nobody waits for what it was asked to do before.
            sizes = [len(shard) for shard in shards]
            xs, ys = self._together([shard.x for shard in shards]), self._together([shard.y for shard in shards])
            pieces = (whole.to(self._place, non_blocking=True).split(sizes) for whole in (xs, ys))
            shards = [Shard(x, y) for x, y in zip(*pieces)]
        self._near.update((device, shard.to(self._place)) for device, shard in zip(missing, shards))

    def _together(self, parts: list[Tensor]) -> Tensor:
        """One after the other, in memory that a GPU can read. Several threads copy: this is what a GPU waits for."""
        starts = [0, *accumulate(len(part) for part in parts)]
        whole = torch.empty(starts[-1], *parts[0].shape[1:], dtype=parts[0].dtype, pin_memory=True)
        size = -(-len(parts) // THREADS) if whole.nbytes > SMALL else len(parts)
        groups = [range(first, min(first + size, len(parts))) for first in range(0, len(parts), size)]

        def copy(group: range) -> None:
            torch.cat([parts[number] for number in group], out=whole[starts[group.start] : starts[group.stop]])

        list(map(copy, groups) if len(groups) == 1 else self._threads.map(copy, groups))
        return whole


def _alike(one: Shard, other: Shard) -> bool:
    """Whether the two are not on a GPU yet, and can lie in one piece there."""
    pairs = (one.x, other.x), (one.y, other.y)
    return all(a.device.type == "cpu" and a.dtype == b.dtype and a.shape[1:] == b.shape[1:] for a, b in pairs)
