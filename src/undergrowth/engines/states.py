"""States: what every device keeps between its jobs, in memory up to a limit and beyond that in a file."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from undergrowth.core import LazyMapping, State, map_tensors, move_to
from undergrowth.engines.spill_file import SpillFile

MAX_CPU_BYTES = 2**28  # of states in memory; the system's page cache holds the file, so more would gain little
GPU_DIVISOR = 8  # on a GPU: this part of its memory, because reading the file from there is slow
STATE_OVERHEAD, TENSOR_OVERHEAD = 768, 768  # bytes that Python and torch need for each, besides the values
OWN, RESIDUAL = 0, 1  # the parts of what a device keeps
NOTHING, IN_MEMORY = -2, -1  # instead of the slot of a part in the file


class KeptState(dict[str, Any]):
    """A state that can be referenced weakly, which a plain dict cannot."""

    __slots__ = ("__weakref__",)


class States:
    """By device: its own state, and the residual of its uplink. Also tracks which devices changed.

    Devices are in the order in which they were first stored, also after a restart, because sums over them depend on it.
    At most `memory` bytes stay in memory (None: `memory_limit`); beyond that the least recently used states go to a
    file in `folder`. A state that was handed out is the same object as long as it is referenced, and does not change.
    """

    def __init__(self, memory: float | None = None, torch_device: str = "cpu", folder: Path | None = None) -> None:
        self.torch_device = torch_device  # where tensors go that are read from the file
        self._max_bytes = memory_limit(torch_device) if memory is None else memory
        self.is_final: Callable[[str, State], bool] | None = None  # own states for which it is true are not kept
        self._file = SpillFile(folder)
        self._clear()

    def _clear(self) -> None:
        # The index of a million devices is a dict of numbers and an array, not a million tuples.
        self._rows: dict[str, int] = {}
        self._slots = array("q")  # two per row: the slots of its parts
        self._cached: OrderedDict[int, tuple[KeptState, list[Tensor]]] = OrderedDict()  # least recently used first
        self._bytes = 0  # of the cached states
        self._references: dict[int, int] = {}  # id of a tensor → how often it is in cached states
        self._lent: WeakValueDictionary[int, KeptState] = WeakValueDictionary()  # not cached, but still referenced
        self._changed: dict[str, None] = {}

    def get(self, device: str) -> State:
        """The device's own state."""
        return self._part(device, OWN)

    def residual(self, device: str) -> State:
        """What the codec of the device's uplink has lost so far."""
        return self._part(device, RESIDUAL)

    def _part(self, device: str, part: int, cache: bool = True) -> State:
        """`cache`: keep a state that was in the file in memory; pass False when scanning every device."""
        row = self._rows.get(device)
        if row is None or self._slots[2 * row + part] == NOTHING:
            return {}
        key = 2 * row + part
        if key in self._cached:
            if cache:
                self._cached.move_to_end(key)
            return self._cached[key][0]
        state = self._lent.get(key)
        if state is None:
            read = self._file.get(self._slots[key])
            read = read if self.torch_device == "cpu" else move_to(read, self.torch_device)
            if cache:
                return self._hold(key, read)
            state = self._lent[key] = KeptState(read)
        return state

    def put(self, device: str, state: State, residual: State | None = None) -> None:
        """Replaces both parts. A part that is the object which was handed out counts as unchanged."""
        if self.is_final is not None and self.is_final(device, state):
            state, residual = {}, {}
        for part, new in ((OWN, state), (RESIDUAL, residual or {})):
            row = self._rows.get(device)
            if row is None:
                if not new:
                    continue
                row = self._enter(device)
            key = 2 * row + part
            old = self._cached[key][0] if key in self._cached else self._lent.get(key)
            if new is old or (not new and self._slots[key] == NOTHING):
                continue
            self._drop(key)
            if new:
                self._slots[key] = IN_MEMORY
                self._hold(key, new)
            self._changed[device] = None

    def _enter(self, device: str) -> int:
        row = self._rows[device] = len(self._rows)
        self._slots.extend((NOTHING, NOTHING))
        return row

    def all(self) -> Mapping[str, State]:
        """The own states of all devices that have one, each read when it is accessed."""
        names: Collection[str] = self._rows
        if NOTHING in self._slots[OWN::2]:
            names = {name: None for name, row in self._rows.items() if self._slots[2 * row + OWN] != NOTHING}
        return LazyMapping(names, lambda device: self._part(device, OWN, cache=False))

    def snapshot(self) -> Mapping[str, State]:
        """What a checkpoint stores of all devices, each read when it is accessed."""
        return LazyMapping(self._rows, self._parts)

    def take_changed(self) -> Mapping[str, State]:
        """What a checkpoint stores of the devices that changed since the last call."""
        changed, self._changed = self._changed, {}
        return LazyMapping(changed, self._parts)

    def _parts(self, device: str) -> State:
        return {"own": self._part(device, OWN, cache=False), "residual": self._part(device, RESIDUAL, cache=False)}

    def restore(self, stored: Iterable[tuple[str, State]], order: Iterable[str] = ()) -> None:
        """Replaces everything by what `snapshot` gave. `order`: the order of the devices, if `stored` has another."""
        self.close()
        self._file = SpillFile(self._file.folder)
        self._clear()
        for device in order:
            self._enter(device)
        for device, parts in stored:
            if device not in self._rows:
                self._enter(device)
            self.put(device, move_to(parts["own"], self.torch_device), move_to(parts["residual"], self.torch_device))
        self._changed = {}

    @property
    def folder(self) -> Path | None:
        """The folder of the file, which is created when it is needed."""
        return self._file.folder

    @folder.setter
    def folder(self, folder: Path) -> None:
        self._file.folder = folder

    def close(self) -> None:
        """Closes the file. States that are only in the file are lost."""
        self._file.close()

    # In memory and in the file ---------------------------------------------------------------------------------

    def _hold(self, key: int, state: State) -> KeptState:
        """Caches a state in memory; the least recently used ones may go to the file."""
        tensors: list[Tensor] = []

        def compact(tensor: Tensor) -> Tensor:
            # Contiguous, as after reading it from the file: the layout can change the last bits of a result. A view is
            # copied, because it would keep a whole stack of clients alive.
            tensor = tensor.contiguous()
            tensor = tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor
            tensors.append(tensor)
            return tensor

        kept = KeptState(map_tensors(compact, state))
        self._cached[key] = (kept, tensors)
        self._bytes += STATE_OVERHEAD
        for tensor in tensors:
            references = self._references.get(id(tensor), 0)
            self._references[id(tensor)] = references + 1
            self._bytes += 0 if references else TENSOR_OVERHEAD + tensor.nbytes
        while self._bytes > self._max_bytes and self._cached:
            self._spill(next(iter(self._cached)))
        return kept

    def _spill(self, key: int) -> None:
        """Removes a state from memory, after writing it to the file if it is not there yet."""
        kept = self._uncache(key)
        if self._slots[key] == IN_MEMORY:
            self._slots[key] = self._file.put(kept)
        self._lent[key] = kept

    def _uncache(self, key: int) -> KeptState:
        kept, tensors = self._cached.pop(key)
        self._bytes -= STATE_OVERHEAD
        for tensor in tensors:
            references = self._references.pop(id(tensor)) - 1
            if references:
                self._references[id(tensor)] = references
            else:
                self._bytes -= TENSOR_OVERHEAD + tensor.nbytes
        return kept

    def _drop(self, key: int) -> None:
        """Removes a state from memory and from the file."""
        if key in self._cached:
            self._uncache(key)
        self._lent.pop(key, None)
        if self._slots[key] >= 0:
            self._file.free(self._slots[key])
        self._slots[key] = NOTHING


def memory_limit(torch_device: str) -> int:
    """Bytes that states may take on a torch device."""
    if torch.device(torch_device).type == "cuda":
        return int(torch.cuda.get_device_properties(torch_device).total_memory) // GPU_DIVISOR
    return MAX_CPU_BYTES
