"""Recorded steps: one step of a stack of clients as a CUDA graph, which the GPU repeats without the CPU's help.

A step of many small layers takes the CPU longer to ask for than the GPU to do. Recorded once for a kind of job and a
number of clients, it is one request. A recording works on memory of its own, into which carries and batches are
copied.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from undergrowth.core import Batch, Carry, LoopClient
from undergrowth.devices.meter import tensors_in
from undergrowth.engines.vector.carries import apart, empty, moved_out, part, wider
from undergrowth.engines.vector.stack import Batches, borders

SIZES = (1, 2, 4, *range(8, 128, 8), *range(128, 513, 32))  # clients that recordings are made for

UNRECORDED = 12  # steps of a kind after which one is recorded, which takes as long as some dozen
UNKNOWN = 48  # the same for a kind that was not there in an earlier round, and so may not be in a later one
LATELY = 8  # calls after which a recording that was not used is forgotten

Step = Callable[[Carry, Batch, Tensor], Carry]


def size_for(clients: int) -> int:
    """The smallest recording that has room for so many clients."""
    return next((size for size in SIZES if size >= clients), clients)


class Recordings:
    """All that there are: by kind of job, and by how many clients they have room for. On a CPU there are none.

    step: (carry, batch, mask, client, clients) → carry
    """

    def __init__(self, step: Callable[..., Carry], cuda: bool) -> None:
        self._step = step
        self.cuda = cuda
        self._pool = torch.cuda.graph_pool_handle() if cuda else None
        self._unrecorded: Counter[int] = Counter()  # kind → steps that were done without a recording
        self._since: dict[int, int] = {}  # kind → the call when it came first
        self._unrecordable: set[int] = set()
        self._made: defaultdict[int, dict[int, Recording]] = defaultdict(dict)
        self._used: dict[int, int] = {}  # kind → the call when it was
        self._calls = 0

    def begin(self) -> None:
        """Called before every round: forgets kinds that come no more, as with a learning rate that falls."""
        self._calls += 1
        for kind in [kind for kind, call in self._used.items() if self._calls - call > LATELY]:
            del self._used[kind], self._made[kind]

    def clear(self) -> None:
        self._made.clear()
        self._used.clear()

    def find(
        self, kind: int, client: LoopClient, batches: Batches, step: int, carry: Carry, clients: int
    ) -> Recording | None:
        """The recording that can do this step, made now if this kind has come often."""
        if not self.cuda or kind in self._unrecordable:
            return None
        recordings, size = self._made[kind], size_for(clients)
        self._used[kind] = self._calls
        if size not in recordings:
            new = self._since.setdefault(kind, self._calls) == self._calls
            if self._unrecorded[kind] < (UNKNOWN if new else UNRECORDED):
                self._unrecorded[kind] += 1
                return None
            batch, _ = batches.at(step, size)
            fill = torch.arange(size, device=batch["share"].device).clamp_max(clients - 1)
            larger = max(recordings, default=0)
            try:
                recordings[size] = Recording(
                    partial(self._step, client=client, clients=size),
                    wider(carry, fill),
                    batch,
                    batches.mask(step, size),
                    self._pool,
                    recordings[larger].carry if larger > size else None,
                )
            except Unrecordable:
                self._unrecordable.add(kind)
                return None
        return recordings[size]


class Unrecordable(Exception):
    """The step changes something that is no tensor, which a recording cannot."""


class Recording:
    """One step, recorded for some clients. `carry` is where it reads and writes.

    memory: the carry of a recording for more clients, whose first places this one then works on.
    """

    def __init__(self, step: Step, carry: Carry, batch: Batch, mask: Tensor, pool: Any, memory: Carry | None) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            if memory is None:
                memory = _memory(carry, step(carry, batch, mask))  # tells what a step changes
            self._work_on(memory, len(mask))
            kept = moved_out(self.carry)
            self._take(batch, mask)
            step(self.carry, self.batch, self.mask)  # compiles and tunes what has not been yet
            _copy(kept, self.carry)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # One pool for all recordings: they never run at the same time, and nothing of one is needed after it.
        with torch.cuda.graph(self._graph, pool=pool):
            _copy(step(self.carry, self.batch, self.mask), self.carry)

    def _work_on(self, memory: Carry, places: int) -> None:
        self.carry = part(memory, slice(0, places))
        self.tensors = list(tensors_in(self.carry))

    def _take(self, batch: Batch, mask: Tensor) -> None:
        """Makes memory for batches, that for shares and masks in one piece."""
        self.weights = torch.stack([batch["share"].view_as(mask), mask])
        self.batch = {name: value.clone() for name, value in batch.items()}
        self.batch["share"], self.mask = self.weights[0].flatten(), self.weights[1]

    def load(self, carry: Carry, clients: int) -> None:
        """Takes up the carry of so many clients; what stands in the other places does not matter."""
        _copy(carry, self.carry, slice(0, clients))

    def step(self, batches: Batches, step: int) -> None:
        """Gathers a batch and does the step."""
        batches.write(step, self.batch, self.weights)
        self._graph.replay()

    def continues(self, other: Recording) -> bool:
        """Whether it works on the memory of the other one, so that nothing needs to be copied."""
        return self.tensors[0].data_ptr() == other.tensors[0].data_ptr()


class Shelf:
    """Where the clients at some places are put when they are done, because a recording goes on with their places."""

    def __init__(self, recording: Recording, first: int, last: int) -> None:
        self.first, self.last = first, last
        self._carry = empty(recording.carry, last - first)
        self._tensors = list(tensors_in(self._carry))
        self._own = [number for number, value in enumerate(self._tensors) if value.stride(0)]  # not shared

    def put(self, recording: Recording, first: int, last: int) -> None:
        """Those of these places that belong here."""
        first, last = max(first, self.first), min(last, self.last)
        if first < last:
            targets = [self._tensors[number][first - self.first : last - self.first] for number in self._own]
            torch._foreach_copy_(targets, [recording.tensors[number][first:last] for number in self._own])

    def carries(self) -> list[Carry]:
        return apart(self._carry, self.last - self.first)


def shelves(recording: Recording, clients: int) -> list[Shelf]:
    """For so many clients, those first who are done first."""
    ends = [0, *borders(clients), clients]
    return [Shelf(recording, *places) for places in reversed(list(pairwise(ends)))]


def _memory(before: Any, after: Any) -> Any:
    """Memory for a carry: its own for what a step changes, one for all clients for what they share and keep."""
    if isinstance(before, Tensor):
        if before is after and before.stride(0) == 0:
            return before[0].clone().expand_as(before)
        return torch.empty_like(after).copy_(before)
    if isinstance(before, Mapping):
        # What only a step's carry has (that a step made it) is kept: steps may then work in place.
        return {name: _memory(before.get(name, value), value) for name, value in after.items()}
    if isinstance(before, list | tuple):
        return type(before)(_memory(*pair) for pair in zip(before, after))
    if before != after:
        raise Unrecordable
    return before


def _copy(source: Any, target: Any, places: slice = slice(None)) -> None:
    pairs = list(_pairs(source, target, places))
    if pairs:
        torch._foreach_copy_([target for _, target in pairs], [source for source, _ in pairs])


def _pairs(source: Any, target: Any, places: slice) -> Iterator[tuple[Tensor, Tensor]]:
    """What must be copied, and to where; of what all clients share, one."""
    if isinstance(target, Tensor):
        if target.stride(0):
            if target is not source:
                yield source[places], target[places]
        elif target.data_ptr() != source.data_ptr():
            yield source[0], target[0]
    elif isinstance(target, Mapping):
        for name in target.keys() & source.keys():
            yield from _pairs(source[name], target[name], places)
    elif isinstance(target, list | tuple):
        for one, other in zip(source, target):
            yield from _pairs(one, other, places)
