"""Recorded steps: one step of a stack of clients as a CUDA graph, which the GPU replays without the CPU.

Launching the many small kernels of a step takes the CPU longer than the GPU needs to run them. Recorded once for a kind
of job, a number of clients and a width of their batches, a step is one launch. It works on fixed buffers, into which
carries and batches are copied. These buffers are used even before recording, so that results do not depend on when
recording starts.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from undergrowth.core import Batch, Carry, LoopClient, tensors_in
from undergrowth.core.names import WEIGHT
from undergrowth.engines.vector.carries import allocate_like, slice_stack, unstack
from undergrowth.engines.vector.stack import Batches, split_points

SIZES = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, *range(24, 128, 8), *range(128, 513, 32))  # clients of a recording

STEPS_BEFORE_RECORDING = 12  # of a kind; recording takes as long as about a dozen steps
STEPS_BEFORE_RECORDING_NEW = 48  # of a kind that is new in this round, and so may not occur in a later one
MAX_UNUSED_ROUNDS = 8  # after which a recording is deleted

Key = tuple[int, tuple[bool, ...]]


def size_for(clients: int) -> int:
    """The size of the smallest recording that has room for `clients` clients."""
    return next((size for size in SIZES if size >= clients), clients)


class RecordingMemory:
    """Memory shared by all recordings: only one runs at a time, and its memory is not needed afterwards."""

    @cached_property
    def pool(self) -> Any:
        """A minimal recording keeps the pool alive, because torch cannot reuse one whose last recording was deleted."""
        self._holder = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._holder):
            torch.zeros(1, device="cuda")
        return self._holder.pool()


class Recordings:
    """All recordings, by kind of job, number of clients and width of their batches. On a CPU there are none.

    `step`: (carry, batch, mask, client, clients) → carry
    """

    def __init__(self, step: Callable[..., Carry], cuda: bool, memory: RecordingMemory) -> None:
        self._step = step
        self.cuda = cuda
        self._memory = memory
        self._patterns: dict[int, Any] = {}  # kind → what a step changes, if it can be recorded
        self._unrecorded: Counter[Key] = Counter()  # steps that ran without a recording
        self._first_round: dict[Key, int] = {}
        # By number of clients and width of their batches.
        self._recordings: defaultdict[Key, dict[tuple[int, int], Recording]] = defaultdict(dict)
        self._last_round: dict[Key, int] = {}  # in which it was used
        self._round = 0

    def start_round(self) -> None:
        """Deletes recordings of kinds that no longer occur, for example of earlier learning rates."""
        self._round += 1
        for key in [key for key, last in self._last_round.items() if self._round - last > MAX_UNUSED_ROUNDS]:
            del self._last_round[key], self._recordings[key]

    def forget(self, kind: int) -> None:
        self._patterns.pop(kind, None)
        known: tuple[dict[Key, Any], ...] = (self._unrecorded, self._first_round, self._recordings, self._last_round)
        for each in known:
            for key in [key for key in each if key[0] == kind]:
                del each[key]

    def clear(self) -> None:
        self._recordings.clear()
        self._last_round.clear()

    def learn(self, kind: int, before: Carry, after: Carry) -> None:
        """Finds out what a first step has changed. A recording can change only tensors."""
        if self.cuda:
            with suppress(NotRecordable):
                self._patterns[kind] = _pattern(before, after)

    def can_record(self, kind: int) -> bool:
        return kind in self._patterns

    def key(self, kind: int, carry: Carry) -> Key:
        """What chunks must have in common to use the same recordings: the kind, and which tensors their clients share.

        The latter differs between chunks if devices have different versions of a model.
        """
        return kind, tuple([value.stride(0) == 0 for value in tensors_in(carry)])

    def find(self, key: Key, client: LoopClient, batches: Batches, carry: Carry, clients: int) -> Recording:
        """The recording for a step of `clients` clients."""
        recordings, size = self._recordings[key], size_for(clients)
        self._last_round[key] = self._round
        if (size, batches.width) not in recordings:
            largest = max(recordings, default=(0, 0))
            fits = largest[0] >= size
            buffers = recordings[largest].carry if fits else _allocate(self._patterns[key[0]], carry, size)
            step = partial(self._step, client=client, clients=size)
            found = Recording(step, slice_stack(buffers, slice(0, size)), *batches.allocate(size))
            recordings[size, batches.width] = found
        found = recordings[size, batches.width]
        if found.possible and not found.recorded:
            self._unrecorded[key] += 1
            new = self._first_round.setdefault(key, self._round) == self._round
            if self._unrecorded[key] > (STEPS_BEFORE_RECORDING_NEW if new else STEPS_BEFORE_RECORDING):
                found.pool = self._memory.pool
        return found


class NotRecordable(Exception):
    """The step changes something other than tensors."""


class Recording:
    """One step of some clients. Once it has a `pool` of memory, the next step is recorded.

    `carry`: the buffers that the step reads and writes; `weights`: the weights and the mask of a batch's samples.
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
        """Copies the carry of `clients` clients into the buffers; the values of other places do not matter."""
        _copy(carry, self.carry, slice(0, clients))

    def step(self, batches: Batches, step: int) -> None:
        """Gathers a batch and runs the step."""
        batches.write(step, self.batch, self.weights)
        if self._graph is not None:
            self._graph.replay()
        elif self.pool is None or not self.possible:
            self._run()
        else:
            self.possible = not _synchronizes(self._run)  # this run also compiles what was not compiled yet
            if self.possible:
                self._graph = self._record()

    def continues(self, other: Recording) -> bool:
        """Whether both use the same buffers, so that nothing needs to be copied."""
        return self.tensors[0].data_ptr() == other.tensors[0].data_ptr()

    def _run(self) -> None:
        _copy(self._step(self.carry, self.batch, self.weights[1]), self.carry)

    def _record(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self._run()
        return graph


class FinishedCarries:
    """Memory for the carries of clients `first` to `last` when they finish: the recording reuses their buffers."""

    def __init__(self, recording: Recording, first: int, last: int) -> None:
        self.first, self.last = first, last
        self._carry = allocate_like(recording.carry, last - first)
        self._tensors = list(tensors_in(self._carry))
        self._own = [number for number, value in enumerate(self._tensors) if value.stride(0)]  # not shared

    def put(self, recording: Recording, first: int, last: int) -> None:
        """Copies the carries of those clients from `first` to `last` that belong here."""
        first, last = max(first, self.first), min(last, self.last)
        if first < last:
            own = [(recording.tensors[number], self._tensors[number]) for number in self._own]
            _copy_all([(source[first:last], kept[first - self.first : last - self.first]) for source, kept in own])

    def carries(self) -> list[Carry]:
        return unstack(self._carry, self.last - self.first)


def allocate_finished(recording: Recording, clients: int) -> list[FinishedCarries]:
    """Memory for the finished carries of `clients` clients, those that finish first at the front."""
    ends = [0, *split_points(clients), clients]
    return [FinishedCarries(recording, *places) for places in reversed(list(pairwise(ends)))]


def _synchronizes(work: Callable[[], None]) -> bool:
    """Runs `work` and returns whether the CPU waited for a value of the GPU, which cannot be recorded."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")  # torch also warns that this mode is a prototype
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return any("called a synchronizing" in str(warning.message) for warning in caught)


def _map_both(
    function: Callable[[Any, Any], Any], pytree: Any, other: Any, added: Callable[[Any], Any] = lambda value: value
) -> Any:
    """A pytree of the form of `pytree` whose leaves are `function(leaf, leaf of other)`.

    Not `map_leaves`: after a step, a carry may have entries that it did not have before. Where `other` lacks an entry
    `value`, it is taken to be `added(value)`.
    """
    if isinstance(pytree, Mapping):
        return {
            name: _map_both(function, value, other[name] if name in other else added(value), added)
            for name, value in pytree.items()
        }
    if isinstance(pytree, list | tuple):
        return type(pytree)(_map_both(function, *pair, added) for pair in zip(pytree, other, strict=False))
    return function(pytree, other)


def _pattern(before: Carry, after: Carry) -> Any:
    """The carry after a step, with None for tensors that the step did not change and empty tensors for the others."""

    def describe(after: Any, before: Any) -> Any:
        if isinstance(after, Tensor):
            return None if before is after else after.new_empty(0, *after.shape[1:])
        if before != after:
            raise NotRecordable
        return after

    def added(value: Any) -> Any:
        # The first step may add an entry so that later steps work in place; a recording always works in place.
        if any(True for _ in tensors_in(value)):
            raise NotRecordable
        return value

    return _map_both(describe, after, before, added)


def _allocate(pattern: Any, carry: Carry, places: int) -> Any:
    """Buffers for a carry: one per client for tensors that a step changes, one for all for tensors that they share."""

    def allocate(pattern: Any, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return pattern
        if pattern is None and value.stride(0) == 0:
            return value[0].clone().expand(places, *value.shape[1:])
        like = value if pattern is None else pattern
        return like.new_empty(places, *like.shape[1:])

    return _map_both(allocate, pattern, carry)


def _copy(source: Carry, target: Carry, places: slice = slice(None)) -> None:
    """Copies the tensors of `source` into `target`; of a tensor that all clients share, only the first row."""
    pairs: list[tuple[Tensor, Tensor]] = []

    def pair(target: Any, source: Any) -> None:
        if not isinstance(target, Tensor):
            return
        if target.stride(0):
            if target is not source:
                pairs.append((source[places], target[places]))
        elif target.data_ptr() != source.data_ptr():
            pairs.append((source[0], target[0]))

    _map_both(pair, target, source)
    _copy_all(pairs)


def _copy_all(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copies the first tensor of each pair into the second: one kernel for all pairs of a type.

    For a list of several types, torch copies tensor by tensor.
    """
    by_type: defaultdict[torch.dtype, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for source, target in pairs:
        by_type[target.dtype].append((source, target))
    for same in by_type.values():
        torch._foreach_copy_([target for _, target in same], [source for source, _ in same])
