"""Slots: a file without a name that holds state trees, each in a slot that another one gets when it is free.

It is read and written, not mapped: pages of a mapped file count as memory of the process, those of a file that was
read or written are the system's, which takes them back when it needs them. The file has no name in its folder, so it
is gone with the process, however that ends. What is stored is what `core.pack` makes of a tree, never pickle.
"""

from __future__ import annotations

import struct
import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from undergrowth.core import RunError, pack, unpack

SMALLEST = 64  # bytes; slots are also rounded up by an eighth at most, so that trees of about one size share them
FIRST = 1024  # bytes that are read at once: all of a small tree
_HEAD = struct.Struct("<QQ")  # bytes of the slot, and of the text that follows


class Slots:
    """`folder`: where the file is, once there is something to write; None: where the system keeps such files."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.size = 0  # bytes of the file
        self._free: dict[int, list[int]] = {}  # bytes → slots of that size
        self._open: Any = None

    def put(self, tree: Any) -> int:
        """Writes a tree down; returns where."""
        tensors, text = pack(tree)
        forms = " ".join(map(_form, tensors.values()))
        told = f"{forms}\n{text}".encode()
        values = [_bytes_of(value.detach().cpu()) for value in tensors.values() if value.numel()]
        room = _rounded(_HEAD.size + len(told) + sum(value.nbytes for value in values))
        free = self._free.get(room)
        place = free.pop() if free else self.size
        pieces = [_HEAD.pack(room, len(told)), told, *values]
        try:
            file = self._file()
            file.seek(place)
            for piece in [b"".join(pieces)] if room <= FIRST else pieces:
                _write(file, memoryview(piece))
        except OSError as error:
            folder = self.folder or tempfile.gettempdir()
            raise RunError(
                f"what devices keep could not be written to a file in '{folder}': {error.strerror or error}"
            ) from error
        self.size = max(self.size, place + room)
        return place

    def get(self, place: int) -> Any:
        """The tree that was written there, with tensors of its own on the CPU."""
        file = self._file()
        file.seek(place)
        first = file.read(FIRST)
        _, length = _HEAD.unpack_from(first)
        start = _HEAD.size + length
        if len(first) < start:
            first += _filled(file, bytearray(start - len(first)))
        forms, text = first[_HEAD.size : start].decode().split("\n", 1)
        rest = memoryview(first)[start:]
        tensors: dict[str, Tensor] = {}
        for number, form in enumerate(forms.split()):
            value = tensors[str(number)] = _empty(form)
            if value.numel():
                into = memoryview(_bytes_of(value))
                known = min(len(rest), len(into))
                into[:known] = rest[:known]
                rest = rest[known:]
                _filled(file, into[known:])
        return unpack(tensors, text)

    def free(self, place: int) -> None:
        """Gives up the slot there."""
        file = self._file()
        file.seek(place)
        room, _ = _HEAD.unpack(file.read(_HEAD.size))
        self._free.setdefault(room, []).append(place)

    def close(self) -> None:
        """Lets go of the file. Nothing of what was in it can be read any more."""
        if self._open is not None:
            self._open.close()

    def _file(self) -> Any:
        if self._open is None:
            self._open = tempfile.TemporaryFile(buffering=0, dir=self.folder)  # noqa: SIM115
            weakref.finalize(self, self._open.close)
        return self._open


def _rounded(size: int) -> int:
    step = max(SMALLEST, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


def _form(value: Tensor) -> str:
    """Type and shape in a word: float32,10,64."""
    return ",".join([str(value.dtype).removeprefix("torch."), *map(str, value.shape)])


def _empty(form: str) -> Tensor:
    kind, *shape = form.split(",")
    return torch.empty([int(size) for size in shape], dtype=getattr(torch, kind))


def _bytes_of(value: Tensor) -> Any:
    """Its values as an array of bytes: the same memory, where they lie one after the other."""
    return value.reshape(-1).view(torch.uint8).numpy()


def _write(file: Any, piece: memoryview) -> None:
    while piece:
        piece = piece[file.write(piece) :]


def _filled(file: Any, into: Any) -> Any:
    """Reads until it is full."""
    left = memoryview(into)
    while left:
        count = file.readinto(left)
        if not count:
            raise RunError("the file with what devices keep has become shorter than it was")
        left = left[count:]
    return into
