"""The training samples of the devices, on the torch device where their jobs run."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from undergrowth.core import Shard
from undergrowth.engines.states import memory_limit

COPY_THREADS = 4
SMALL_COPY_BYTES = 1 << 20  # one thread copies so much before others have started


class Shards(Protocol):
    """The source of the training samples of a device. If they change, `at(round)` returns those of a round."""

    def train(self, device: str) -> Shard: ...

    def size(self, device: str) -> int: ...


def shards_at(shards: Shards, root_round: int) -> Shards:
    """The samples of the devices in a round of the root, counted from 0."""
    found: Shards = shards.at(root_round) if hasattr(shards, "at") else shards
    return found


class Samples:
    """Training samples by device. On a GPU they stay in its memory up to a limit."""

    def __init__(self, shards: Shards, torch_device: str) -> None:
        self._shards = shards
        self._torch_device = torch_device
        self._cuda = torch.device(torch_device).type == "cuda"
        self._cached: dict[str, Shard] = {}
        self._root_round = 0  # of the samples in `_cached`
        self._bytes_left: int | None = None  # of GPU memory for samples; None: not looked up yet

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(COPY_THREADS)

    def of(self, device: str, root_round: int = 0) -> Shard:
        """The samples that a device holds in a round of the root."""
        self.prefetch([device], root_round)
        cached = self._cached.get(device)
        return shards_at(self._shards, root_round).train(device).to(self._torch_device) if cached is None else cached

    def prefetch(self, devices: Sequence[str], root_round: int = 0) -> None:
        """Copies the samples of several devices to the GPU at once, as long as there is room."""
        if self._root_round != root_round and hasattr(self._shards, "at"):
            self._cached, self._root_round, self._bytes_left = {}, root_round, None
        missing = [device for device in devices if device not in self._cached] if self._cuda else []
        if not missing:
            return
        if self._bytes_left is None:
            self._bytes_left = memory_limit(self._torch_device)
        shards: list[Shard] = []
        for device in missing:
            if self._bytes_left <= 0:
                break
            shards.append(shards_at(self._shards, root_round).train(device))
            self._bytes_left -= shards[-1].x.nbytes + shards[-1].y.nbytes
        if shards and all(_can_share_tensor(shard, shards[0]) for shard in shards):
            # One copy from pinned memory, which does not wait for work that the GPU was given before.
            sizes = [len(shard) for shard in shards]
            xs, ys = self._concatenate([s.x for s in shards]), self._concatenate([s.y for s in shards])
            parts = (whole.to(self._torch_device, non_blocking=True).split(sizes) for whole in (xs, ys))
            shards = [Shard(x, y) for x, y in zip(*parts, strict=True)]
        # There may be fewer shards than missing devices.
        self._cached.update((d, shard.to(self._torch_device)) for d, shard in zip(missing, shards, strict=False))

    def _concatenate(self, parts: list[Tensor]) -> Tensor:
        """All parts in one pinned tensor. Several threads copy, because the GPU waits for this."""
        starts = [0, *accumulate(len(part) for part in parts)]
        whole = torch.empty(starts[-1], *parts[0].shape[1:], dtype=parts[0].dtype, pin_memory=True)
        size = -(-len(parts) // COPY_THREADS) if whole.nbytes > SMALL_COPY_BYTES else len(parts)
        groups = [range(first, min(first + size, len(parts))) for first in range(0, len(parts), size)]

        def copy(group: range) -> None:
            torch.cat([parts[number] for number in group], out=whole[starts[group.start] : starts[group.stop]])

        list(map(copy, groups) if len(groups) == 1 else self._threads.map(copy, groups))
        return whole


def _can_share_tensor(one: Shard, other: Shard) -> bool:
    """Whether the samples of two shards can be copied to a GPU as parts of one tensor."""
    pairs = (one.x, other.x), (one.y, other.y)
    return all(a.device.type == "cpu" and a.dtype == b.dtype and a.shape[1:] == b.shape[1:] for a, b in pairs)
