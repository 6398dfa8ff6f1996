"""Checkpoints: the complete state of a run after a round, in safetensors files.

`round-00007.safetensors` contains the simulation: every node, the clock, the pending jobs. States of devices that
changed in that round are in `devices-00007.safetensors`, followed by `devices-00007-2.safetensors` and so on if there
are many, because a file is in memory while it is written or read. The checkpoint records which file contains the newest
state of each device. Files that no kept checkpoint needs are removed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from undergrowth.core import InputError, RunError, State, pack, tensors_in, unpack
from undergrowth.engines import States
from undergrowth.runs.atomic_files import write_atomically
from undergrowth.runs.formats import CHECKPOINT_FORMAT, check_format, upgrade_checkpoint

MAX_BYTES_PER_FILE = 2**24
MAX_DEVICES_PER_FILE = 2**14
BYTES_PER_READ = 2**20
KEPT_CHECKPOINTS = 2  # the newest, and one to fall back on if the newest is damaged


class Checkpoints:
    """The checkpoint files of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._places: dict[str, str] = {}  # device → suffix of the file with its newest state: 00007 or 00007-2
        self._checksums: dict[str, int] = {}  # suffix → checksum of that file
        self._kept: dict[int, set[str]] = {}  # round of a checkpoint → suffixes of the device files it needs

    def save(self, round: int, state: State, states: States) -> tuple[int, str, int]:
        """Writes `state` and the changed device states; returns round, file name and checksum for the store."""
        for number, part in enumerate(_split(states.take_changed()), 1):
            place = f"{round:05d}" if number == 1 else f"{round:05d}-{number}"
            self._checksums[place] = write(self._device_file(place), part)
            self._places.update(dict.fromkeys(part, place))
        needed = set(self._places.values())
        self._checksums = {place: value for place, value in self._checksums.items() if place in needed}
        name = f"round-{round:05d}.safetensors"
        content = {"simulation": state, "places": self._places, "checksums": self._checksums}
        checksum = write(self.folder / name, content)
        self._kept[round] = needed
        return round, name, checksum

    def load(self, name: str, checksum: int) -> tuple[State, Iterable[str], Iterator[tuple[str, State]]]:
        """The state of a checkpoint, the devices in their original order, and the stored state of each device.

        All files are checked first. The device files are read while the iterator is consumed.
        """
        content, found = read(self.folder / name, checksum)
        state = upgrade_checkpoint(content["simulation"], found)
        for place, expected in content["checksums"].items():
            check(self._device_file(place), expected)
        # Only now, when everything can be read: the next checkpoint builds on these.
        self._places, self._checksums = content["places"], content["checksums"]
        self._kept = {int(name.split("-")[1].split(".")[0]): set(self._checksums)}
        return state, self._places, self._device_states()

    def _device_states(self) -> Iterator[tuple[str, State]]:
        for place in self._checksums:
            states, _ = read(self._device_file(place))
            for device, state in states.items():
                if self._places[device] == place:
                    yield device, state

    def _device_file(self, place: str) -> Path:
        return self.folder / f"devices-{place}.safetensors"

    def tidy(self) -> int:
        """Removes files that the newest checkpoints do not need; returns the round of the oldest kept checkpoint."""
        for old in sorted(self._kept)[:-KEPT_CHECKPOINTS]:
            del self._kept[old]
        needed = {f"round-{round:05d}.safetensors" for round in self._kept}
        needed |= {self._device_file(place).name for places in self._kept.values() for place in places}
        # A kill leaves drafts: ours end in .part, and those of the library that writes them begin with .tmp.
        for path in (*self.folder.glob("*.safetensors*"), *self.folder.glob(".tmp*")):
            if path.name not in needed:
                path.unlink(missing_ok=True)
        return min(self._kept, default=0)


def write(path: Path, content: Any) -> int:
    """Writes a pytree as one safetensors file, atomically; returns its checksum."""
    tensors, text = pack(content)
    metadata = {"tree": text, "format": str(CHECKPOINT_FORMAT)}
    write_atomically(path, lambda draft: safetensors.torch.save_file(_separate(tensors), draft, metadata))
    return _checksum(path)


def read(path: Path, checksum: int | None = None) -> tuple[Any, int]:
    """The pytree in a file and the format that it was written in.

    Raises `RunError` if the file is missing, truncated or changed, and `InputError` if its format is newer than this
    version of the package.
    """
    if checksum is not None:
        check(path, checksum)
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata()
            found = int(metadata.get("format", 1))
            check_format(f"checkpoint '{path}'", found, CHECKPOINT_FORMAT)
            # Cloned, because alignment in memory can change the last digit of a result, and the file aligns nothing.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            return unpack(tensors, metadata["tree"]), found
    except InputError:
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"checkpoint '{path}' cannot be read: {error}") from error


def check(path: Path, checksum: int) -> None:
    """Raises `RunError` if a file is missing or its checksum differs."""
    try:
        found = _checksum(path)
    except OSError as error:
        raise RunError(f"checkpoint '{path}' cannot be read: {error}") from error
    if found != checksum:
        raise RunError(f"checkpoint '{path}' is damaged: its checksum is not the one that was stored")


def _checksum(path: Path) -> int:
    checksum = 0
    with open(path, "rb") as file:
        while block := file.read(BYTES_PER_READ):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _split(states: Mapping[str, State]) -> Iterator[dict[str, State]]:
    """Device states in groups that fit into one file each."""
    group: dict[str, State] = {}
    counted: set[int] = set()  # a tensor that several devices share is stored once per file
    size = 0
    for device, state in states.items():
        group[device] = state
        for value in tensors_in(state):
            size += 0 if id(value) in counted else value.nbytes
            counted.add(id(value))
        if len(group) == MAX_DEVICES_PER_FILE or size > MAX_BYTES_PER_FILE:
            yield group
            group, counted, size = {}, set(), 0
    if group:
        yield group


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, no two of which share memory: safetensors refuses those that do."""
    storages: set[int] = set()
    separate = {}
    for name, value in tensors.items():
        value = value.detach().cpu().contiguous()
        storage = value.untyped_storage().data_ptr()
        separate[name] = value.clone() if storage in storages else value
        storages.add(storage)
    return separate
