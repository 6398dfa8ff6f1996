"""Checkpoints: the whole state of a run after a round, as safetensors files that are written whole or not at all.

`round-00007.safetensors` holds the simulation: every node, the clock, what is under way. Own states of devices lie in
`devices-00007.safetensors`, those that changed in that round, and in `devices-00007-2.safetensors` and so on where they
are many: a file is in memory while it is written or read. The checkpoint says which file has the newest of each device.
Files that no kept checkpoint needs are removed.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from undergrowth.core import RunError, State, pack, tensors_in, unpack
from undergrowth.engines import States

MOST_BYTES, MOST_DEVICES = 2**24, 2**14  # of own states in one file
BLOCK = 2**20  # bytes that are read at once for a checksum
KEPT = 2  # checkpoints that stay: the newest, and one to fall back on if it was damaged


class Checkpoints:
    """The checkpoint files of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._places: dict[str, str] = {}  # device → which file has its newest own state: 00007 or 00007-2
        self._checksums: dict[str, int] = {}  # of these files
        self._kept: dict[int, set[str]] = {}  # round of a checkpoint → the device files it needs

    def save(self, round: int, simulation: State, states: States) -> tuple[int, str, int]:
        """Writes the state after `round` rounds; returns what the store must know to find it again."""
        for number, some in enumerate(_parts(states.take_changed()), 1):
            place = f"{round:05d}" if number == 1 else f"{round:05d}-{number}"
            self._checksums[place] = write(self._devices(place), some)
            self._places.update(dict.fromkeys(some, place))
        needed = set(self._places.values())
        self._checksums = {place: value for place, value in self._checksums.items() if place in needed}
        name = f"round-{round:05d}.safetensors"
        tree = {"simulation": simulation, "places": self._places, "checksums": self._checksums}
        checksum = write(self.folder / name, tree)
        self._kept[round] = needed
        return round, name, checksum

    def load(self, name: str, checksum: int) -> tuple[State, Iterable[str], Iterator[tuple[str, State]]]:
        """At a checkpoint: the simulation's state, the devices in the order they came, what was written down of each.

        All files are checked, then those of the devices are read as the iterator goes on.
        """
        tree = read(self.folder / name, checksum)
        for place, checksum in tree["checksums"].items():
            check(self._devices(place), checksum)
        # Only now, when everything can be read: the next checkpoint builds on what stands here.
        self._places, self._checksums = tree["places"], tree["checksums"]
        self._kept = {int(name.split("-")[1].split(".")[0]): set(self._checksums)}
        return tree["simulation"], self._places, self._written()

    def _written(self) -> Iterator[tuple[str, State]]:
        for place in self._checksums:
            for device, written in read(self._devices(place)).items():
                if self._places[device] == place:
                    yield device, written

    def _devices(self, place: str) -> Path:
        return self.folder / f"devices-{place}.safetensors"

    def tidy(self) -> int:
        """Removes what the newest checkpoints do not need; returns the first round that is kept."""
        for old in sorted(self._kept)[:-KEPT]:
            del self._kept[old]
        needed = {f"round-{round:05d}.safetensors" for round in self._kept}
        needed |= {self._devices(place).name for places in self._kept.values() for place in places}
        for path in self.folder.glob("*.safetensors*"):
            if path.name not in needed:
                path.unlink(missing_ok=True)
        return min(self._kept, default=0)


def write(path: Path, tree: Any) -> int:
    """Writes a tree as one safetensors file, so that the file is there whole or not at all; returns its checksum."""
    tensors, text = pack(tree)
    _put(path, lambda draft: safetensors.torch.save_file(_separate(tensors), draft, {"tree": text}))
    return _checksum(path)


def read(path: Path, checksum: int | None = None) -> Any:
    """The tree in a file. A file that is missing, truncated or changed is refused."""
    if checksum is not None:
        check(path, checksum)
    try:
        with safe_open(str(path), framework="pt") as file:
            text = file.metadata()["tree"]
            # Copied: in the file tensors begin anywhere, and where one begins in memory can change a last digit.
            return unpack({name: file.get_tensor(name).clone() for name in file.keys()}, text)  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"checkpoint '{path}' cannot be read: {error}") from error


def check(path: Path, checksum: int) -> None:
    """Refuses a file that is missing or not as it was written."""
    try:
        found = _checksum(path)
    except OSError as error:
        raise RunError(f"checkpoint '{path}' cannot be read: {error}") from error
    if found != checksum:
        raise RunError(f"checkpoint '{path}' is damaged: its checksum is not the one that was stored")


def replace_file(path: Path, content: bytes) -> None:
    """Puts a file in place in one step, after its content has reached the disk."""
    _put(path, lambda draft: draft.write_bytes(content))


def _put(path: Path, fill: Callable[[Path], object]) -> None:
    draft = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fill(draft)
        with open(draft, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):  # the draft is not there where not even its folder could be made
            draft.unlink()
        raise RunError(f"'{path}' could not be written: {getattr(error, 'strerror', None) or error}") from error


def _checksum(path: Path) -> int:
    found = 0
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            found = zlib.crc32(block, found)
    return found


def _parts(written: Mapping[str, State]) -> Iterator[dict[str, State]]:
    """What was written down of devices, as much at a time as goes into one file."""
    part: dict[str, State] = {}
    seen: set[int] = set()  # a tensor that several devices have is in the file once
    size = 0
    for device, parts in written.items():
        part[device] = parts
        for value in tensors_in(parts):
            size += 0 if id(value) in seen else value.nbytes
            seen.add(id(value))
        if len(part) == MOST_DEVICES or size > MOST_BYTES:
            yield part
            part, seen, size = {}, set(), 0
    if part:
        yield part


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU and apart: a file cannot hold two tensors that share memory."""
    seen: set[int] = set()
    apart = {}
    for name, value in tensors.items():
        value = value.detach().cpu().contiguous()
        place = value.untyped_storage().data_ptr()
        apart[name] = value.clone() if place in seen else value
        seen.add(place)
    return apart
