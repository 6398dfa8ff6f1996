"""Arena: shared memory without a name, for what a parent process and its workers tell each other.

The memory is mapped before the workers are forked, so they have it too. Pages cost nothing until they are written,
and all is gone with the last process: there is no segment that a killed one could leave behind. One process writes at
a time, front to back; nothing is freed but everything at once. What is stored is what `core.pack` makes of a state
tree, tensors as their bytes and a JSON text, never pickle. Tensors are read as views, without a copy.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from undergrowth.core import pack, unpack

HEAD = 64  # bytes before the first entry; the first eight of them tell where the last committed record is
STEP = 64  # entries begin at multiples of this: a cache line, and enough for every type
MOST_ADDRESSES = 2**45  # bytes of address space for all arenas together
CROWDED = 32  # an arena is crowded when a process has filled this part of the machine's memory

_SHARED = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS
# Python before 3.12 has no name for it.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)

Place = tuple[str, list[int], int]  # type, shape and first byte of a tensor


class Full(Exception):
    """There is no room for what was to be written."""


class Arena:
    """`crowded_at`: bytes after which whoever writes should let the other side take what is there."""

    def __init__(self, size: int, crowded_at: int | None = None) -> None:
        self._map = _mapped(size)
        self._memory = memoryview(self._map)
        self._words = self._memory[:HEAD].cast("Q")  # a word of this is written at once, not byte by byte
        self.size = len(self._memory)
        self.crowded_at = crowded_at or self.size
        self.top = HEAD

    @property
    def crowded(self) -> bool:
        return self.top > self.crowded_at

    def reset(self) -> None:
        """Forgets everything. Views of what was there will show what is written next."""
        self._words[0] = 0
        self.top = HEAD

    # Trees ---------------------------------------------------------------------------------------------------

    def put(self, tree: Any, seen: dict[int, Place] | None = None) -> int:
        """Writes a state tree; returns where it is. `seen`: tensors that are here already, by identity."""
        where, self.top = self.write(tree, self.top, seen=seen)
        return where

    def write(
        self, tree: Any, at: int, end: int | None = None, seen: dict[int, Place] | None = None
    ) -> tuple[int, int]:
        """The same from a given place on; returns where the tree is and where it ends. Raises Full past `end`."""
        tensors, text = pack(tree)
        seen = {} if seen is None else seen
        new: list[tuple[Tensor, Place]] = []
        for value in tensors.values():
            if id(value) not in seen:
                new.append((value, (str(value.dtype).removeprefix("torch."), list(value.shape), at)))
                at = _next(at + value.numel() * value.element_size())
        known = {**seen, **{id(value): place for value, place in new}}
        written = json.dumps([[known[id(value)] for value in tensors.values()], text]).encode()
        if at + 8 + len(written) > (self.size if end is None else end):
            raise Full
        for value, place in new:
            if value.numel():
                self._view(*place).copy_(value.detach())
            seen[id(value)] = place
        return at, self._write_bytes(written, at)

    def get(self, where: int) -> Any:
        """The tree that was written there. Its tensors are views."""
        places, text = json.loads(self._read_bytes(where))
        return unpack({str(number): self._view(*place) for number, place in enumerate(places)}, text)

    def take(self, where: int) -> Any:
        """The same with tensors of its own, which stay as they are."""
        places, text = json.loads(self._read_bytes(where))
        return unpack({str(number): self._view(*place).clone() for number, place in enumerate(places)}, text)

    def _view(self, name: str, shape: list[int], place: int) -> Tensor:
        dtype, count = getattr(torch, name), math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=place).view(shape)

    # The log -------------------------------------------------------------------------------------------------

    def commit(self, record: Any) -> None:
        """Appends a record (plain JSON). It counts, with all that was written before, once the last word is there."""
        written = json.dumps([self._words[0], record]).encode()
        if self.top + 8 + len(written) > self.size:
            raise Full
        where, self.top = self.top, self._write_bytes(written, self.top)
        self._words[0] = where

    def committed(self) -> list[Any]:
        """All records since the last reset, oldest first."""
        return list(self._backwards())[::-1]

    def _backwards(self) -> Iterator[Any]:
        where = self._words[0]
        while where:
            where, record = json.loads(self._read_bytes(where))
            yield record

    def _write_bytes(self, written: bytes, at: int) -> int:
        start = at + 8
        self._memory[at:start] = len(written).to_bytes(8, "little")
        self._memory[start : start + len(written)] = written
        return _next(start + len(written))

    def _read_bytes(self, at: int) -> bytes:
        length = int.from_bytes(self._memory[at : at + 8], "little")
        return bytes(self._memory[at + 8 : at + 8 + length])


def arenas(count: int) -> list[Arena]:
    """One for the parent and one for each worker, all larger than what they will ever have to hold."""
    memory = machine_memory()
    size = min(memory, MOST_ADDRESSES // count)
    crowded = memory // CROWDED
    return [Arena(size, crowded), *(Arena(size, crowded // max(1, count - 1)) for _ in range(count - 1))]


def machine_memory() -> int:
    """Bytes that this machine has, or that this container may use."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # there is no such file, or it says "max"
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return memory


def _mapped(size: int) -> mmap.mmap:
    while True:
        try:
            return mmap.mmap(-1, size, flags=_SHARED | _NO_RESERVE)
        except OSError:  # a machine that grants no more memory than it has
            if size < 2**20:
                raise
            size //= 2


def _next(at: int) -> int:
    return -(-at // STEP) * STEP
