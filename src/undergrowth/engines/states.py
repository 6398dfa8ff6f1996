"""States: what every device keeps, in memory as far as there is room for it, and the rest in a file."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from undergrowth.core import Each, Packet, State, moved
from undergrowth.engines.slots import Slots

ROOM = 2**28  # bytes of states in memory; what the system has left holds the pages of the file, so more gains little
GPU_SHARE = 8  # on a GPU: this part of its memory, since what is in the file is far from there
STATE, TENSOR = 768, 768  # bytes that Python and torch need for each, besides its values
OWN, RESIDUAL = 0, 1  # the parts of what a device keeps
NOTHING, IN_MEMORY = -2, -1  # in place of where a part is in the file


class Kept(dict[str, Any]):
    """A state that can be referred to weakly, which a plain dict cannot."""

    __slots__ = ("__weakref__",)


class States:
    """Of every device its own state, and what its link lost. And which changed since last asked.

    Devices keep the order in which they came first, also across a restart: sums over them depend on it. At most
    `memory` bytes stay in memory (None: `room`); beyond that, what was used longest ago goes to a file in `folder`. A
    state that was handed out is the same object as long as somebody holds it, and stays as it is.
    """

    def __init__(self, memory: float | None = None, device: str = "cpu", folder: Path | None = None) -> None:
        self.device = device  # where tensors are put that come from the file
        self._memory = room(device) if memory is None else memory
        self._slots = Slots(folder)
        self._clear()

    def _clear(self) -> None:
        # A million devices have an index of a dict of numbers and an array, and not of a million tuples.
        self._rows: dict[str, int] = {}
        self._places = array("q")  # two for each row: where its parts are
        self._near: OrderedDict[int, tuple[Kept, list[Tensor]]] = OrderedDict()  # used longest ago first
        self._used = 0  # bytes of what is near
        self._sharers: dict[int, int] = {}  # id of a tensor → how often it is in what is near
        self._lent: WeakValueDictionary[int, Kept] = WeakValueDictionary()  # not near, but somebody has it
        self._changed: dict[str, None] = {}

    def get(self, device: str) -> State:
        """The device's own state."""
        return self._part(device, OWN)

    def residual(self, device: str) -> State:
        """What the codec of its uplink has lost so far."""
        return self._part(device, RESIDUAL)

    def _part(self, device: str, part: int, stays: bool = True) -> State:
        """With `stays`, what was in the file is near from now on; who looks at all in turn gains nothing by that."""
        row = self._rows.get(device)
        if row is None or self._places[2 * row + part] == NOTHING:
            return {}
        key = 2 * row + part
        if key in self._near:
            if stays:
                self._near.move_to_end(key)
            return self._near[key][0]
        state = self._lent.get(key)
        if state is None:
            read = self._slots.get(self._places[key])
            read = read if self.device == "cpu" else moved(read, self.device)
            if stays:
                return self._hold(key, read)
            state = self._lent[key] = Kept(read)
        return state

    def put(self, device: str, state: State, residual: State | None = None) -> None:
        """Replaces both. What was handed out and comes back as the same object is unchanged."""
        for part, new in ((OWN, state), (RESIDUAL, residual or {})):
            row = self._rows.get(device)
            if row is None:
                if not new:
                    continue
                row = self._enter(device)
            key = 2 * row + part
            old = self._near[key][0] if key in self._near else self._lent.get(key)
            if new is old or (not new and self._places[key] == NOTHING):
                continue
            self._drop(key)
            if new:
                self._places[key] = IN_MEMORY
                self._hold(key, new)
            self._changed[device] = None

    def _enter(self, device: str) -> int:
        row = self._rows[device] = len(self._rows)
        self._places.extend((NOTHING, NOTHING))
        return row

    def all(self) -> Mapping[str, State]:
        """The own states of all devices that have one, each read when it is asked for."""
        having: Collection[str] = self._rows
        if NOTHING in self._places[OWN::2]:
            having = {name: None for name, row in self._rows.items() if self._places[2 * row + OWN] != NOTHING}
        return Each(having, lambda device: self._part(device, OWN, stays=False))

    def snapshot(self) -> Mapping[str, State]:
        """What has to be written down of all devices, each read when it is asked for."""
        return Each(self._rows, self._written)

    def take_changed(self) -> Mapping[str, State]:
        """The same of the devices that changed since the last call."""
        changed, self._changed = self._changed, {}
        return Each(changed, self._written)

    def _written(self, device: str) -> State:
        return {"own": self._part(device, OWN, stays=False), "residual": self._part(device, RESIDUAL, stays=False)}

    def restore(self, written: Iterable[tuple[str, State]], order: Iterable[str] = ()) -> None:
        """Takes up what was written down. `order`: who came first, where it is written in another order."""
        self.close()
        self._slots = Slots(self._slots.folder)
        self._clear()
        for device in order:
            self._enter(device)
        for device, parts in written:
            if device not in self._rows:
                self._enter(device)
            self.put(device, moved(parts["own"], self.device), moved(parts["residual"], self.device))
        self._changed = {}

    @property
    def folder(self) -> Path | None:
        """Where the file is, which has no name there. It is made when it is needed."""
        return self._slots.folder

    @folder.setter
    def folder(self, folder: Path) -> None:
        self._slots.folder = folder

    def close(self) -> None:
        """Lets go of the file, and with it of what is not in memory."""
        self._slots.close()

    # In memory and in the file ---------------------------------------------------------------------------------

    def _hold(self, key: int, state: State) -> Kept:
        """Keeps a state near, and makes room for it."""
        tensors: list[Tensor] = []
        kept = Kept({name: _apart(value, tensors) for name, value in state.items()})
        self._near[key] = (kept, tensors)
        self._used += STATE
        for tensor in tensors:
            sharers = self._sharers.get(id(tensor), 0)
            self._sharers[id(tensor)] = sharers + 1
            self._used += 0 if sharers else TENSOR + tensor.nbytes
        while self._used > self._memory and self._near:
            self._put_away(next(iter(self._near)))
        return kept

    def _put_away(self, key: int) -> None:
        kept = self._leave(key)
        if self._places[key] == IN_MEMORY:
            self._places[key] = self._slots.put(kept)
        self._lent[key] = kept

    def _leave(self, key: int) -> Kept:
        kept, tensors = self._near.pop(key)
        self._used -= STATE
        for tensor in tensors:
            sharers = self._sharers.pop(id(tensor)) - 1
            if sharers:
                self._sharers[id(tensor)] = sharers
            else:
                self._used -= TENSOR + tensor.nbytes
        return kept

    def _drop(self, key: int) -> None:
        """Forgets a state."""
        if key in self._near:
            self._leave(key)
        self._lent.pop(key, None)
        if self._places[key] >= 0:
            self._slots.free(self._places[key])
        self._places[key] = NOTHING


def room(device: str) -> int:
    """Bytes of states that may be on a torch device at once."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory) // GPU_SHARE
    return ROOM


def _apart(node: Any, found: list[Tensor]) -> Any:
    """The same tree, whose tensors, also listed, hold no more memory than they show: not a whole stack of clients.

    And whose values lie as they would after a way through the file: how they lie can change a last digit.
    """
    if isinstance(node, Tensor):
        node = node.contiguous()
        node = node.clone() if node.untyped_storage().nbytes() > node.nbytes else node
        found.append(node)
    elif isinstance(node, Packet):
        return Packet(_apart(dict(node.tensors), found), node.scalars, node.tags)
    elif isinstance(node, Mapping):
        return {name: _apart(value, found) for name, value in node.items()}
    elif isinstance(node, list | tuple):
        return type(node)([_apart(value, found) for value in node])
    return node
