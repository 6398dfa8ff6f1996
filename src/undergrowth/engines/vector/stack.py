"""A stack of clients: jobs after `begin`, the order in which they are computed, and their batches side by side."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undergrowth.core import Carry, LoopClient, Shard, State, Steps, tensors_in
from undergrowth.core.client import Loop
from undergrowth.core.names import FINISH, WEIGHT
from undergrowth.engines.vector.carries import signature
from undergrowth.engines.vector.stack_size import MAX_GPU_CLIENTS
from undergrowth.engines.world import Job

FIRST_WAVE = 32  # clients that keep a GPU busy while the CPU begins others
LAST_PART = 8  # so few clients that the CPU finishes them quickly after the GPU


@dataclass
class Begun:
    """A job after `begin`, or one of its updates."""

    job: Job
    name: str  # of the update; empty if the job has only one
    client: LoopClient
    shard: Shard
    own: State
    carry: Carry
    steps: Steps
    count: int = -1  # steps that it runs
    kind: int = -1  # jobs of the same kind can be stacked
    prepared: bool = False  # whether `carry` is that of `before_steps`

    def __post_init__(self) -> None:
        self.count = len(self.steps)

    @property
    def loop(self) -> Loop:
        return Loop(self.client, self.job.down, self.shard, self.carry, self.steps, self.job.context)

    @property
    def signature(self) -> Hashable:
        """What clients must have in common to be stacked."""
        down = self.job.down
        carry = tuple(
            (name, down.signature if value is down.tensors else signature(value))
            for name, value in self.carry.items()
            if name != FINISH
        )
        first = {name: values[0] for name, values in self.steps.visits.items() if values}
        data = tuple((name, each.shape[1:], each.dtype) for name, each in {**self.steps.data, **first}.items())
        return self.name, carry, data, self.steps.batch

    @property
    def altered(self) -> Begun:
        """A second, different client made of this one: its last sample replaces half of the first batch."""
        first, *rest = self.steps.epochs
        order = first.clone()
        order[: max(1, min(self.steps.batch, len(order)) // 2)] = first[-1]
        return replace(self, steps=replace(self.steps, epochs=(order, *rest)))


def job_bytes(begun: Sequence[Begun]) -> int:
    """Bytes that a job holds: the state of its device, and what `begin` created from it and from the download.

    A tensor that devices share counts for each of them. Whether they share it depends on what is in memory, and the
    division into waves must not.
    """
    own = [value for each in begun[:1] for value in tensors_in(each.own)]
    known = {id(value) for each in begun for value in [*own, *each.job.down.tensors.values()]}
    created = {id(value): value.nbytes for each in begun for value in tensors_in(each.carry) if id(value) not in known}
    return sum(value.nbytes for value in own) + sum(created.values())


def waves(jobs: Sequence[Job]) -> list[Sequence[Job]]:
    """The jobs of a round in the order in which a GPU computes them. `jobs`: sorted by steps, fewest first.

    The CPU begins clients while the GPU computes others. The first wave is small, because the GPU waits for it, and has
    the clients with most steps, so that the CPU can begin all others meanwhile.
    """
    if len(jobs) < 2 * FIRST_WAVE:
        return [jobs]
    first, others = jobs[-FIRST_WAVE:], jobs[:-FIRST_WAVE]
    size = -(-len(others) // -(-len(others) // MAX_GPU_CLIENTS))
    return [first, *(others[start : start + size] for start in range(0, len(others), size))]


def split_points(clients: int) -> list[int]:
    """Positions at which a stack is divided, smallest first.

    Clients after a split point have fewer steps, and are returned while the GPU still computes the earlier ones.
    """
    candidates = ((LAST_PART, 2 * LAST_PART), (clients // 2, 8 * LAST_PART))
    return [point for point, min_clients in candidates if clients >= min_clients]


def width_for(begun: Sequence[Begun]) -> int:
    """Samples for which a recorded batch of these clients has room: at most the batch size, otherwise a power of two.

    A batch size far above the data thus makes no room for samples that nobody has. There are few widths, because every
    width has its own recordings.
    """
    return min(begun[0].steps.batch, 1 << (_most_samples(begun) - 1).bit_length())


def _most_samples(begun: Sequence[Begun]) -> int:
    """Samples of the longest epoch of all clients, at least one."""
    return max(1, max((len(order) for each in begun for order in each.steps.epochs), default=1))


class Batches:
    """The batches of stacked clients, step by step. `begun`: sorted by steps, most first.

    `places`: positions in the stack; those without a client, or whose client has finished, get samples of weight 0.
    `width`: samples of a client for which a batch has room, as in `width_for`; None: as many as these clients need.
    """

    def __init__(self, begun: Sequence[Begun], torch_device: str, places: int, width: int | None = None) -> None:
        first = begun[0].steps
        batch, steps = width or min(first.batch, _most_samples(begun)), max(each.count for each in begun)
        # One pool of all samples and one table of positions, so that the batch of a step is a single gather. Clients
        # that have the very same samples, such as models that a server trains, share them.
        samples = {tuple(map(id, each.steps.data.values())): each.steps.data for each in begun}
        self.pool = {name: torch.cat([data[name] for data in samples.values()]) for name in first.data}
        sizes = [len(next(iter(data.values()))) for data in samples.values()]
        starts = dict(zip(samples, accumulate(sizes, initial=0), strict=False))
        # The same for what belongs to visits: a pool of all visits, client by client.
        self.visits = {name: _visit_pool(begun, name, torch_device) for name in first.visits}
        table = np.zeros((places, steps, batch), dtype=np.int64)
        real = np.zeros((places, steps), dtype=np.int64)  # samples of a client's batch that are no padding
        for place, each in enumerate(begun):
            start = starts[tuple(map(id, each.steps.data.values()))]
            table[place] = start
            _fill(table[place], real[place], each, start, batch)
        self.active = (real > 0).sum(0).tolist()  # step → clients that run it
        self._full = (real == batch).all(0, where=real > 0).tolist()
        inside = np.arange(batch) < real[:, :, None]
        # A stack in double precision needs weights in double precision: 1/3 is not a float32.
        is_double = any(values.dtype == torch.float64 for values in self.pool.values())
        dtype = np.float64 if is_double else np.float32
        weight = np.where(inside, 1 / np.maximum(real, 1)[:, :, None], 0).astype(dtype)
        mask = (inside | (real[:, :, None] == 0)).astype(dtype)
        # By step, then client, so that the values of one step are contiguous.
        self._table = _to_torch(table.transpose(1, 0, 2), torch_device)
        self._visit_table = self._table
        if self.visits:
            self._visit_table = _to_torch(_visit_table(begun, real, batch).transpose(1, 0, 2), torch_device)
        self._weights = _to_torch(np.stack([weight, mask]).transpose(2, 0, 1, 3), torch_device)

    @property
    def width(self) -> int:
        return self._table.shape[2]

    def at(self, step: int, places: int) -> tuple[dict[str, Tensor], Tensor | None]:
        """The long batch of the first `places` places, and the mask of its real samples (None: all are real)."""
        batch = {name: values.index_select(0, rows) for name, values, rows in self._sources(step, places)}
        weight, mask = self._weights[step, :, :places]
        batch[WEIGHT] = weight.reshape(-1)
        return batch, None if self._full[step] else mask

    def allocate(self, places: int) -> tuple[dict[str, Tensor], Tensor]:
        """Memory for the long batch of `places` places, and for the weights and the mask of its samples."""
        rows = places * self.width
        pools = {**self.pool, **self.visits}
        batch = {name: values.new_empty(rows, *values.shape[1:]) for name, values in pools.items()}
        return batch, torch.empty_like(self._weights[0, :, :places])

    def write(self, step: int, batch: Mapping[str, Tensor], weights: Tensor) -> None:
        """Writes the long batch of a step, and the weights and the mask of its samples, into allocated memory."""
        places = weights.shape[1]
        for name, values, rows in self._sources(step, places):
            torch.index_select(values, 0, rows, out=batch[name])
        weights.copy_(self._weights[step, :, :places])

    def _sources(self, step: int, places: int) -> Iterator[tuple[str, Tensor, Tensor]]:
        """The entries of a batch: name, pool, and the rows of the pool that the step uses."""
        for pools, table in ((self.pool, self._table), (self.visits, self._visit_table)):
            rows = table[step, :places].reshape(-1)
            yield from ((name, values, rows) for name, values in pools.items())


def _visit_pool(begun: Sequence[Begun], name: str, torch_device: str) -> Tensor:
    pool = torch.cat([values for each in begun for values in each.steps.visits[name]])
    return pool if pool.device.type != "cpu" else _to_torch(pool.numpy(), torch_device)


def _visit_table(begun: Sequence[Begun], real: NDArray[Any], batch: int) -> NDArray[Any]:
    """Positions in the pool of visits, places × steps × batch. The visits of a client follow each other in the pool.

    Padding has any position: its weight is 0.
    """
    sizes = [sum(len(order) for order in each.steps.epochs) for each in begun]
    starts = np.zeros((len(real), 1), dtype=np.int64)
    starts[: len(begun), 0] = np.cumsum(sizes) - sizes
    first = starts + real.cumsum(1) - real
    positions: NDArray[Any] = first[:, :, None] + np.arange(batch)
    return positions.clip(max=sum(sizes) - 1)


def _to_torch(values: NDArray[Any], torch_device: str) -> Tensor:
    """A tensor on `torch_device`. To a GPU from pinned memory, which does not wait for work it was given before."""
    found = torch.from_numpy(np.ascontiguousarray(values))
    on_gpu = torch.device(torch_device).type == "cuda"
    return found.pin_memory().to(torch_device, non_blocking=True) if on_gpu else found


def _fill(table: NDArray[Any], real: NDArray[Any], each: Begun, start: int, batch: int) -> None:
    """Writes the positions of one client's samples into its rows of the table."""
    row = 0
    for order in each.steps.epochs:
        values = order.numpy()
        rows = -(-len(values) // batch)
        positions = np.full(rows * batch, start)
        positions[: len(values)] = values + start
        left = min(rows, each.count - row)
        table[row : row + left] = positions.reshape(rows, batch)[:left]
        real[row : row + left] = batch
        if left == rows and len(values) % batch:
            real[row + rows - 1] = len(values) % batch
        row += left
