"""Checkpoints: the whole state of a run after a round, as safetensors files that are written whole or not at all.

`round-00007.safetensors` holds the simulation: every node, the clock, what is under way. Own states of devices lie in
`devices-00007.safetensors`, those that changed in that round; the checkpoint says in which file the newest of
each device is. Files that no kept checkpoint needs are removed.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from undergrowth.core import RunError, State, pack, unpack
from undergrowth.engines import States

KEPT = 2  # checkpoints that stay: the newest, and one to fall back on if it was damaged


class Checkpoints:
    """The checkpoint files of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._places: dict[str, int] = {}  # device → round of the file with its newest own state
        self._checksums: dict[int, int] = {}  # of these files, by round
        self._kept: dict[int, set[int]] = {}  # round of a checkpoint → rounds of the device files it needs

    def save(self, round: int, simulation: State, states: States) -> tuple[int, str, int]:
        """Writes the state after `round` rounds; returns what the store must know to find it again."""
        changed = states.take_changed()
        if changed:
            self._checksums[round] = write(self.folder / f"devices-{round:05d}.safetensors", changed)
            self._places.update(dict.fromkeys(changed, round))
        needed = set(self._places.values())
        self._checksums = {number: value for number, value in self._checksums.items() if number in needed}
        name = f"round-{round:05d}.safetensors"
        tree = {"simulation": simulation, "places": self._places, "checksums": self._checksums}
        checksum = write(self.folder / name, tree)
        self._kept[round] = needed
        return round, name, checksum

    def load(self, name: str, checksum: int) -> tuple[State, dict[str, State]]:
        """The simulation's state and the devices' own states at a checkpoint."""
        tree = read(self.folder / name, checksum)
        files = {
            round: read(self.folder / f"devices-{round:05d}.safetensors", checksum)
            for round, checksum in tree["checksums"].items()
        }
        # Only now, when everything could be read: the next checkpoint builds on what stands here.
        self._places, self._checksums = tree["places"], tree["checksums"]
        self._kept = {int(name.split("-")[1].split(".")[0]): set(files)}
        return tree["simulation"], {device: files[round][device] for device, round in self._places.items()}

    def tidy(self) -> int:
        """Removes what the newest checkpoints do not need; returns the first round that is kept."""
        for old in sorted(self._kept)[:-KEPT]:
            del self._kept[old]
        needed = {f"round-{round:05d}.safetensors" for round in self._kept}
        needed |= {f"devices-{round:05d}.safetensors" for rounds in self._kept.values() for round in rounds}
        for path in self.folder.glob("*.safetensors*"):
            if path.name not in needed:
                path.unlink(missing_ok=True)
        return min(self._kept, default=0)


def write(path: Path, tree: Any) -> int:
    """Writes a tree as one safetensors file, so that the file is there whole or not at all; returns its checksum."""
    tensors, text = pack(tree)
    return replace_file(path, safetensors.torch.save(_separate(tensors), {"tree": text}))


def read(path: Path, checksum: int | None = None) -> Any:
    """The tree in a file. A file that is missing, truncated or changed is refused."""
    try:
        if checksum is not None and zlib.crc32(path.read_bytes()) != checksum:
            raise RunError(f"checkpoint '{path}' is damaged: its checksum is not the one that was stored")
        with safe_open(str(path), framework="pt") as file:
            text = file.metadata()["tree"]
            return unpack({name: file.get_tensor(name) for name in file.keys()}, text)  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"checkpoint '{path}' cannot be read: {error}") from error


def replace_file(path: Path, content: bytes) -> int:
    """Puts a file in place in one step, after its content has reached the disk."""
    draft = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(draft, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        with suppress(OSError):  # the draft is not there where not even its folder could be made
            draft.unlink()
        raise RunError(f"'{path}' could not be written: {error.strerror or error}") from error
    return zlib.crc32(content)


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
