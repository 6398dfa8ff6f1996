"""Recorded steps: one step of a stack of clients as a CUDA graph, which the GPU repeats without the CPU's help.

A step of many small layers takes the CPU longer to ask for than the GPU to do. Recorded once for a kind of job and a
number of clients, it is one request. It works on memory of its own, into which carries and batches are copied, also
before it is recorded: whether it is hangs on what was computed before, and no bit of a result may.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from undergrowth.core import Batch, Carry, LoopClient, tensors_in
from undergrowth.core.names import WEIGHT
from undergrowth.engines.vector.carries import apart, copied, part
from undergrowth.engines.vector.stack import Batches, borders

SIZES = (1, 2, 4, *range(8, 128, 8), *range(128, 513, 32))  # clients that recordings are made for

UNRECORDED = 12  # steps of a kind after which one is recorded, which takes as long as some dozen
UNKNOWN = 48  # the same for a kind that was not there in an earlier round, and so may not be in a later one
LATELY = 8  # calls after which a recording that was not used is forgotten

Key = tuple[int, tuple[bool, ...]]


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
        self._patterns: dict[int, Any] = {}  # kind → what a step changes, where it can be recorded
        self._unrecorded: Counter[Key] = Counter()  # steps that were done without a recording
        self._since: dict[Key, int] = {}  # the call when it came first
        self._made: defaultdict[Key, dict[int, Recording]] = defaultdict(dict)  # by number of clients
        self._used: dict[Key, int] = {}  # the call when it was
        self._calls = 0

    @cached_property
    def _pool(self) -> Any:
        """Memory for all of them: they never run at the same time, and nothing of one is needed after it. A recording
        of next to nothing holds it, because torch takes no pool again whose last recording was forgotten."""
        self._holder = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._holder):
            torch.zeros(1, device="cuda")
        return self._holder.pool()

    def begin(self) -> None:
        """Called before every round: forgets kinds that come no more, as with a learning rate that falls."""
        self._calls += 1
        for key in [key for key, call in self._used.items() if self._calls - call > LATELY]:
            del self._used[key], self._made[key]

    def clear(self) -> None:
        self._made.clear()
        self._used.clear()

    def learn(self, kind: int, before: Carry, after: Carry) -> None:
        """Looks at what a first step has changed. No recording can change something that is no tensor."""
        if self.cuda:
            with suppress(Unrecordable):
                self._patterns[kind] = _pattern(before, after)

    def can_do(self, kind: int) -> bool:
        return kind in self._patterns

    def key(self, kind: int, carry: Carry) -> Key:
        """What chunks must have in common to use the same recordings: also which tensors their clients share, which
        hangs on the chunk where devices have different versions of a model."""
        return kind, tuple([value.stride(0) == 0 for value in tensors_in(carry)])

    def find(self, key: Key, client: LoopClient, batches: Batches, carry: Carry, clients: int) -> Recording:
        """The one that can do a step of so many clients."""
        recordings, size = self._made[key], size_for(clients)
        self._used[key] = self._calls
        if size not in recordings:
            larger = max(recordings, default=0)
            memory = recordings[larger].carry if larger > size else _memory(self._patterns[key[0]], carry, size)
            step = partial(self._step, client=client, clients=size)
            recordings[size] = Recording(step, part(memory, slice(0, size)), *batches.room(size))
        found = recordings[size]
        if found.possible and not found.recorded:
            self._unrecorded[key] += 1
            new = self._since.setdefault(key, self._calls) == self._calls
            if self._unrecorded[key] > (UNKNOWN if new else UNRECORDED):
                found.pool = self._pool
        return found


class Unrecordable(Exception):
    """The step changes something that is no tensor."""


class Recording:
    """One step of some clients, recorded when it is done next once it has a `pool` for that. `carry` is where it reads
    and writes.

    weights: the shares and the mask of a batch.
    """

    def __init__(self, step: Callable[..., Carry], carry: Carry, batch: Batch, weights: Tensor) -> None:
        self.carry, self.tensors = carry, list(tensors_in(carry))
        self.batch, self.weights = {**batch, WEIGHT: weights[0].flatten()}, weights
        self.pool: Any = None
        self.possible = True
        self._step = step
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def recorded(self) -> bool:
        return self._graph is not None

    def load(self, carry: Carry, clients: int) -> None:
        """Takes up the carry of so many clients; what stands in the other places does not matter."""
        _copy(carry, self.carry, slice(0, clients))

    def step(self, batches: Batches, step: int) -> None:
        """Gathers a batch and does the step."""
        batches.write(step, self.batch, self.weights)
        if self._graph is not None:
            self._graph.replay()
        elif self.pool is None or not self.possible:
            self._work()
        else:
            self.possible = not _waits(self._work)  # which has also compiled what had not been
            if self.possible:
                self._graph = self._record()

    def continues(self, other: Recording) -> bool:
        """Whether it works on the memory of the other one, so that nothing needs to be copied."""
        return self.tensors[0].data_ptr() == other.tensors[0].data_ptr()

    def _work(self) -> None:
        _copy(self._step(self.carry, self.batch, self.weights[1]), self.carry)

    def _record(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self._work()
        return graph


class Shelf:
    """Where the clients at some places are put when they are done, because a recording goes on with their places."""

    def __init__(self, recording: Recording, first: int, last: int) -> None:
        self.first, self.last = first, last
        self._carry = copied(recording.carry, last - first)
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


def _waits(work: Callable[[], None]) -> bool:
    """Does some work, and says whether the CPU looked at a value on the way, which a recording cannot."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")  # which warns that it is new
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return any("called a synchronizing" in str(warning.message) for warning in said)


def _pattern(before: Any, after: Any) -> Any:
    """The carry after a step, with None for a tensor that the step left as it was and no values of others."""
    if isinstance(after, Tensor):
        return None if before is after else after.new_empty(0, *after.shape[1:])
    if isinstance(after, Mapping):
        # A step may add that a step has made this carry, after which steps work in place; a recording always does.
        added = [value for name, value in after.items() if name not in before]
        if any(True for _ in tensors_in(added)):
            raise Unrecordable
        return {name: _pattern(before.get(name, value), value) for name, value in after.items()}
    if isinstance(after, list | tuple):
        return type(after)(_pattern(*pair) for pair in zip(before, after))
    if before != after:
        raise Unrecordable
    return after


def _memory(pattern: Any, carry: Any, places: int) -> Any:
    """Memory for a carry: its own for what a step changes, one for all clients for what they share and keep."""
    if isinstance(carry, Tensor):
        if pattern is None and carry.stride(0) == 0:
            return carry[0].clone().expand(places, *carry.shape[1:])
        like = carry if pattern is None else pattern
        return like.new_empty(places, *like.shape[1:])
    if isinstance(pattern, Mapping):
        return {name: _memory(value, carry.get(name, value), places) for name, value in pattern.items()}
    if isinstance(pattern, list | tuple):
        return type(pattern)(_memory(*pair, places) for pair in zip(pattern, carry))
    return pattern


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
