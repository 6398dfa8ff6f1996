"""Arena: anonymous shared memory through which a parent process and its workers exchange tensors and records.

The memory is mapped before the workers are forked, so they inherit it. Pages cost nothing until they are written, and
all memory is freed with the last process: a killed process cannot leave a segment behind. One process writes at a time,
from front to back; memory is only freed all at once. A pytree is stored as `core.pack` splits it, tensors as their
bytes and a JSON text, never as a pickle. Tensors are read as views, without a copy.
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

HEADER_BYTES = 64  # before the first entry; the first eight hold the address of the last committed record
ALIGNMENT = 64  # of entries: a cache line, and enough for every dtype
MAX_ADDRESS_SPACE = 2**45  # bytes of all arenas together
CROWDED_DIVISOR = 32  # an arena is crowded once a process has filled this part of the machine's memory

_SHARED = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS
# Python before 3.12 does not define it.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)

TensorPlace = tuple[str, list[int], int]  # dtype, shape and address of a tensor


class ArenaFull(Exception):
    """There is no room for what was to be written."""


class Arena:
    """`crowded_at`: bytes after which the writer should let the other side read everything and reset the arena."""

    def __init__(self, size: int, crowded_at: int | None = None) -> None:
        self._map = _map_memory(size)
        self._memory = memoryview(self._map)
        self._words = self._memory[:HEADER_BYTES].cast("Q")  # a word is written atomically, unlike a slice of bytes
        self.size = len(self._memory)
        self.crowded_at = crowded_at or self.size
        self.top = HEADER_BYTES

    @property
    def crowded(self) -> bool:
        return self.top > self.crowded_at

    def reset(self) -> None:
        """Frees everything. Views that were read before will show what is written next."""
        self._words[0] = 0
        self.top = HEADER_BYTES

    # Pytrees -------------------------------------------------------------------------------------------------

    def put(self, pytree: Any, seen: dict[int, TensorPlace] | None = None) -> int:
        """Writes a pytree; returns its address. `seen`: tensors that are in this arena already, by id."""
        address, self.top = self.write(pytree, self.top, seen=seen)
        return address

    def write(
        self, pytree: Any, at: int, end: int | None = None, seen: dict[int, TensorPlace] | None = None
    ) -> tuple[int, int]:
        """Writes a pytree from `at` on; returns its address and where it ends. Raises ArenaFull beyond `end`."""
        tensors, text = pack(pytree)
        seen = {} if seen is None else seen
        new: list[tuple[Tensor, TensorPlace]] = []
        for value in tensors.values():
            if id(value) not in seen:
                new.append((value, (str(value.dtype).removeprefix("torch."), list(value.shape), at)))
                at = _align(at + value.numel() * value.element_size())
        places = {**seen, **{id(value): place for value, place in new}}
        encoded = json.dumps([[places[id(value)] for value in tensors.values()], text]).encode()
        if at + 8 + len(encoded) > (self.size if end is None else end):
            raise ArenaFull
        for value, place in new:
            if value.numel():
                self._view(*place).copy_(value.detach())
            seen[id(value)] = place
        return at, self._write_bytes(encoded, at)

    def get(self, address: int) -> Any:
        """The pytree that was written there. Its tensors are views."""
        places, text = json.loads(self._read_bytes(address))
        return unpack({str(number): self._view(*place) for number, place in enumerate(places)}, text)

    def take(self, address: int) -> Any:
        """The pytree that was written there, with copies of its tensors."""
        places, text = json.loads(self._read_bytes(address))
        return unpack({str(number): self._view(*place).clone() for number, place in enumerate(places)}, text)

    def _view(self, dtype_name: str, shape: list[int], address: int) -> Tensor:
        dtype, count = getattr(torch, dtype_name), math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=address).view(shape)

    # Records -------------------------------------------------------------------------------------------------

    def commit(self, record: Any) -> None:
        """Appends a record (plain JSON). It becomes visible, with all entries before it, in one atomic write."""
        encoded = json.dumps([self._words[0], record]).encode()
        if self.top + 8 + len(encoded) > self.size:
            raise ArenaFull
        address, self.top = self.top, self._write_bytes(encoded, self.top)
        self._words[0] = address

    def committed(self) -> list[Any]:
        """All records since the last reset, oldest first."""
        return list(self._newest_first())[::-1]

    def _newest_first(self) -> Iterator[Any]:
        address = self._words[0]
        while address:
            address, record = json.loads(self._read_bytes(address))
            yield record

    def _write_bytes(self, encoded: bytes, at: int) -> int:
        start = at + 8
        self._memory[at:start] = len(encoded).to_bytes(8, "little")
        self._memory[start : start + len(encoded)] = encoded
        return _align(start + len(encoded))

    def _read_bytes(self, at: int) -> bytes:
        length = int.from_bytes(self._memory[at : at + 8], "little")
        return bytes(self._memory[at + 8 : at + 8 + length])


def create_arenas(workers: int) -> tuple[Arena, list[Arena]]:
    """An arena for the parent and one for each worker. Each is larger than anything it will have to hold."""
    memory = machine_memory()
    size = min(memory, MAX_ADDRESS_SPACE // (1 + workers))
    crowded_at = memory // CROWDED_DIVISOR
    return Arena(size, crowded_at), [Arena(size, crowded_at // max(1, workers)) for _ in range(workers)]


def machine_memory() -> int:
    """Bytes of memory that this machine has, or that this container may use."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # the file is missing, or contains "max"
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return memory


def _map_memory(size: int) -> mmap.mmap:
    while True:
        try:
            return mmap.mmap(-1, size, flags=_SHARED | _NO_RESERVE)
        except OSError:  # the system does not overcommit memory
            if size < 2**20:
                raise
            size //= 2


def _align(at: int) -> int:
    return -(-at // ALIGNMENT) * ALIGNMENT
