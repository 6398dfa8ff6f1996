"""SpillFile: an unnamed file that holds pytrees, each in a slot that is reused when it becomes free.

The file is read and written, not mapped: pages of a mapped file count as memory of the process, while the page cache
belongs to the system, which reclaims it when needed. The file has no name in its folder, so it disappears with the
process, however that ends. A pytree is stored as `core.pack` splits it, never as a pickle.
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

MIN_SLOT_STEP = 64  # bytes; sizes of slots are rounded up by at most an eighth, so that similar pytrees share slots
FIRST_READ = 1024  # bytes of the first read: all of a small pytree
_HEADER = struct.Struct("<QQ")  # bytes of the slot, and of the text that follows


class SpillFile:
    """`folder`: where the file is created at the first write; None: the system's folder for temporary files."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.size = 0  # bytes of the file
        self._free: dict[int, list[int]] = {}  # size of a slot → free slots
        self._opened: Any = None

    def put(self, pytree: Any) -> int:
        """Writes a pytree; returns its slot."""
        tensors, text = pack(pytree)
        header_text = f"{' '.join(map(_describe, tensors.values()))}\n{text}".encode()
        values = [_bytes_of(value.detach().cpu()) for value in tensors.values() if value.numel()]
        size = _slot_size(_HEADER.size + len(header_text) + sum(value.nbytes for value in values))
        free = self._free.get(size)
        slot = free.pop() if free else self.size
        pieces = [_HEADER.pack(size, len(header_text)), header_text, *values]
        try:
            file = self._file()
            file.seek(slot)
            for piece in [b"".join(pieces)] if size <= FIRST_READ else pieces:
                _write(file, memoryview(piece))
        except OSError as error:
            folder = self.folder or tempfile.gettempdir()
            raise RunError(
                f"what devices keep could not be written to a file in '{folder}': {error.strerror or error}"
            ) from error
        self.size = max(self.size, slot + size)
        return slot

    def get(self, slot: int) -> Any:
        """The pytree in a slot, with new tensors on the CPU."""
        file = self._file()
        file.seek(slot)
        first = file.read(FIRST_READ)
        _, length = _HEADER.unpack_from(first)
        start = _HEADER.size + length
        if len(first) < start:
            first += _read_into(file, bytearray(start - len(first)))
        descriptions, text = first[_HEADER.size : start].decode().split("\n", 1)
        rest = memoryview(first)[start:]
        tensors: dict[str, Tensor] = {}
        for number, description in enumerate(descriptions.split()):
            value = tensors[str(number)] = _empty_tensor(description)
            if value.numel():
                target = memoryview(_bytes_of(value))
                known = min(len(rest), len(target))
                target[:known] = rest[:known]
                rest = rest[known:]
                _read_into(file, target[known:])
        return unpack(tensors, text)

    def free(self, slot: int) -> None:
        """Makes a slot available for another pytree."""
        file = self._file()
        file.seek(slot)
        size, _ = _HEADER.unpack(file.read(_HEADER.size))
        self._free.setdefault(size, []).append(slot)

    def close(self) -> None:
        """Closes the file, which deletes it."""
        if self._opened is not None:
            self._opened.close()

    def _file(self) -> Any:
        if self._opened is None:
            self._opened = tempfile.TemporaryFile(buffering=0, dir=self.folder)  # noqa: SIM115
            weakref.finalize(self, self._opened.close)
        return self._opened


def _slot_size(size: int) -> int:
    step = max(MIN_SLOT_STEP, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


def _describe(value: Tensor) -> str:
    """Dtype and shape of a tensor: float32,10,64."""
    return ",".join([str(value.dtype).removeprefix("torch."), *map(str, value.shape)])


def _empty_tensor(description: str) -> Tensor:
    dtype, *shape = description.split(",")
    return torch.empty([int(size) for size in shape], dtype=getattr(torch, dtype))


def _bytes_of(value: Tensor) -> Any:
    """The values as an array of bytes that shares the tensor's memory if it is contiguous."""
    return value.reshape(-1).view(torch.uint8).numpy()


def _write(file: Any, piece: memoryview) -> None:
    while piece:
        piece = piece[file.write(piece) :]


def _read_into(file: Any, target: Any) -> Any:
    """Reads until `target` is full; returns it."""
    left = memoryview(target)
    while left:
        count = file.readinto(left)
        if not count:
            raise RunError("the file with what devices keep has become shorter than it was")
        left = left[count:]
    return target
