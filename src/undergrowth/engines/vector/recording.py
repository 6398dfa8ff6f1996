"""Recorded steps: one step of a stack of clients as a CUDA graph, which the GPU repeats without the CPU's help.

A step of many small layers takes the CPU longer to ask for than the GPU to do. Recorded once for a kind of job and a
number of clients, it is one request. A recording works on memory of its own, into which carries and batches are
copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from undergrowth.core import Batch, Carry
from undergrowth.engines.vector.stack import Batches, moved_out, part

SIZES = (1, 2, 4, *range(8, 128, 8), *range(128, 513, 32))  # clients that recordings are made for

Step = Callable[[Carry, Batch, Tensor], Carry]


def size_for(clients: int) -> int:
    """The smallest recording that has room for so many clients."""
    return next((size for size in SIZES if size >= clients), clients)


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
            self.carry = part(memory, slice(0, len(mask)))
            kept = moved_out(self.carry)
            self.batch = {name: value.clone() for name, value in batch.items()}
            self.mask = mask.clone()
            step(self.carry, self.batch, self.mask)  # compiles and tunes what has not been yet
            _copy(kept, self.carry)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # One pool for all recordings: they never run at the same time, and nothing of one is needed after it.
        with torch.cuda.graph(self._graph, pool=pool):
            _copy(step(self.carry, self.batch, self.mask), self.carry)

    def load(self, carry: Carry, clients: int) -> None:
        """Takes up the carry of so many clients; what stands in the other places does not matter."""
        _copy(carry, self.carry, clients)

    def step(self, batches: Batches, step: int) -> None:
        """Gathers a batch and does the step."""
        batches.write(step, self.batch, self.mask)
        self._graph.replay()

    def continues(self, other: Recording) -> bool:
        """Whether it works on the memory of the other one, so that nothing needs to be copied."""
        mine, its = (next(_tensors(recording.carry)) for recording in (self, other))
        return mine.data_ptr() == its.data_ptr()


def _tensors(tree: Any) -> Iterator[Tensor]:
    """Those that a recording changes."""
    if isinstance(tree, Tensor):
        if tree.stride(0):
            yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from _tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _tensors(value)


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


def _copy(source: Any, target: Any, clients: int | None = None) -> None:
    if isinstance(target, Tensor):
        if target is source:
            return
        if target.stride(0) == 0:
            target[0].copy_(source[0])
        else:
            target[:clients].copy_(source[:clients])
    elif isinstance(target, Mapping):
        for name in target.keys() & source.keys():
            _copy(source[name], target[name], clients)
    elif isinstance(target, list | tuple):
        for one, other in zip(source, target):
            _copy(one, other, clients)
