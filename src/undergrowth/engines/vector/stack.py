"""What a stack of clients is made of: jobs that have begun, in which order, and their batches side by side."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from undergrowth.core import Carry, LoopClient, Shard, State, Steps, tensors_in
from undergrowth.core.names import FINISH, WEIGHT
from undergrowth.engines.vector.carries import signature
from undergrowth.engines.vector.room import GPU_CLIENTS
from undergrowth.engines.world import Job

WAVE = 32  # clients that keep a GPU busy while the CPU begins others
LATE = 8  # clients that a CPU hands on in no time


@dataclass
class Begun:
    """A job after `begin`, or one of the updates that it is made of."""

    job: Job
    name: str  # of the update
    client: LoopClient
    shard: Shard
    own: State
    carry: Carry
    steps: Steps
    count: int = -1  # steps it does
    kind: int = -1  # the same number for all that can be stacked

    def __post_init__(self) -> None:
        self.count = len(self.steps)

    @property
    def signature(self) -> Hashable:
        """What clients must have in common to be stacked."""
        down = self.job.down
        carry = tuple(
            (name, down.signature if value is down.tensors else signature(value))
            for name, value in self.carry.items()
            if name != FINISH
        )
        data = tuple((name, values.shape[1:], values.dtype) for name, values in self.steps.data.items())
        return self.name, carry, data, self.steps.batch

    @property
    def altered(self) -> Begun:
        """Another client, where there is only one: half of its first batch is the sample that comes last."""
        first, *rest = self.steps.epochs
        order = first.clone()
        order[: max(1, min(self.steps.batch, len(order)) // 2)] = first[-1]
        return replace(self, steps=replace(self.steps, epochs=(order, *rest)))


def brought(begun: Sequence[Begun]) -> int:
    """Bytes that a job has brought along: what its device kept, and what `begin` made of it and of what was sent.

    A tensor that devices share counts for each: whether they do hangs on what is in memory, and waves must not.
    """
    own = [value for each in begun[:1] for value in tensors_in(each.own)]
    known = {id(value) for each in begun for value in [*own, *each.job.down.tensors.values()]}
    made = {id(value): value.nbytes for each in begun for value in tensors_in(each.carry) if id(value) not in known}
    return sum(value.nbytes for value in own) + sum(made.values())


def waves(jobs: Sequence[Job]) -> list[Sequence[Job]]:
    """The jobs of a round, sorted by their steps, in the order in which a GPU gets them.

    The CPU begins clients while the GPU computes others. So only some at first, which it waits for, and these with
    most steps, to begin all others meanwhile.
    """
    if len(jobs) < 2 * WAVE:
        return [jobs]
    first, others = jobs[-WAVE:], jobs[:-WAVE]
    each = -(-len(others) // -(-len(others) // GPU_CLIENTS))
    return [first, *(others[start : start + each] for start in range(0, len(others), each))]


def borders(clients: int) -> list[int]:
    """Places at which a stack is divided. Whose place is behind one is handed on while a GPU computes those before it:
    first those with fewest steps, in the end a few with most."""
    return [place for place, least in ((LATE, 2 * LATE), (clients // 2, 8 * LATE)) if clients >= least]


class Batches:
    """The batches of stacked clients, step by step. Clients must come with those of most steps first.

    places: in the stack; those that no client has, or none any more, are filled with samples that count for nothing.
    """

    def __init__(self, begun: Sequence[Begun], device: str, places: int) -> None:
        first = begun[0].steps
        batch, steps = first.batch, max((each.count for each in begun), default=0)
        # One pool of all samples and one table of positions: a step is then a single gather.
        self.pool = {name: torch.cat([each.steps.data[name] for each in begun]) for name in first.data}
        table = np.zeros((places, steps, batch), dtype=np.int64)
        real = np.zeros((places, steps), dtype=np.int64)  # samples of a client's batch that are not filling
        start = 0
        for place, each in enumerate(begun):
            table[place] = start
            _fill(table[place], real[place], each, start)
            start += len(next(iter(each.steps.data.values())))
        self.active = (real > 0).sum(0).tolist()  # by step: clients that still do it
        self._full = (real == batch).all(0, where=real > 0).tolist()
        inside = np.arange(batch) < real[:, :, None]
        weight = np.where(inside, 1 / np.maximum(real, 1)[:, :, None], 0).astype(np.float32)
        mask = (inside | (real[:, :, None] == 0)).astype(np.float32)
        # By step, then client: what one step needs lies together.
        self._table = _there(table.transpose(1, 0, 2), device)
        self._weights = _there(np.stack([weight, mask]).transpose(2, 0, 1, 3), device)

    def at(self, step: int, places: int) -> tuple[dict[str, Tensor], Tensor | None]:
        """The long batch of the first so many places, and which of its samples are real (None: all)."""
        positions = self._table[step, :places].reshape(-1)
        batch = {name: values.index_select(0, positions) for name, values in self.pool.items()}
        weight, mask = self._weights[step, :, :places]
        batch[WEIGHT] = weight.reshape(-1)
        return batch, None if self._full[step] else mask

    def room(self, places: int) -> tuple[dict[str, Tensor], Tensor]:
        """Memory for the long batch of so many places, and for the shares and the mask of its samples."""
        rows = places * self._table.shape[2]
        batch = {name: values.new_empty(rows, *values.shape[1:]) for name, values in self.pool.items()}
        return batch, torch.empty_like(self._weights[0, :, :places])

    def write(self, step: int, batch: Mapping[str, Tensor], weights: Tensor) -> None:
        """Writes the long batch to where there is room for it, and the shares and the mask of its samples."""
        places = weights.shape[1]
        positions = self._table[step, :places].reshape(-1)
        for name, values in self.pool.items():
            torch.index_select(values, 0, positions, out=batch[name])
        weights.copy_(self._weights[step, :, :places])


def _there(values: np.ndarray, device: str) -> Tensor:
    """On the device; from pinned memory, so that nobody waits for what a GPU was asked to do before."""
    found = torch.from_numpy(np.ascontiguousarray(values))
    return found.pin_memory().to(device, non_blocking=True) if torch.device(device).type == "cuda" else found


def _fill(table: np.ndarray, real: np.ndarray, each: Begun, start: int) -> None:
    """Writes one client's positions into its rows of the table."""
    row, batch = 0, each.steps.batch
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
