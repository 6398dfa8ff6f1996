"""Fleet: which device has which profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from undergrowth.core import InputError
from undergrowth.devices.fleet_file import FleetEntry, find_entries, shipped_fleets
from undergrowth.devices.profile import Profile


class Fleet:
    """A profile for every device; the same seed gives the same profiles.

    Classes are assigned at random, so that the class of a device does not depend on its data. Profiles with a spread
    are computed on demand: creating a fleet of 100 000 devices is cheap.
    """

    def __init__(self, entries: Sequence[FleetEntry], devices: Sequence[str], seed: int) -> None:
        self.devices = tuple(devices)
        self.entries = tuple(entries)
        self._index = {device: position for position, device in enumerate(self.devices)}
        generator = np.random.default_rng([seed, len(self.devices)])
        sizes, shuffle = _class_sizes(self.entries, len(self.devices))
        self._class = np.repeat(np.arange(len(self.entries)), sizes)
        if shuffle:
            self._class = generator.permutation(self._class)
        # Independent factors for speed and link, which are hardly correlated in practice.
        self._normals = generator.standard_normal((len(self.devices), 2))
        self._profiles: dict[str, Profile] = {}

    def profile(self, device: str) -> Profile:
        profile = self._profiles.get(device)
        if profile is None:
            position = self._index[device]
            entry = self.entries[self._class[position]]
            profile = self._vary(entry, position) if entry.spread else entry.profile
            self._profiles[device] = profile
        return profile

    @cached_property
    def classes(self) -> dict[str, list[str]]:
        """The devices of every class, by the name of its profile; classes without a device are left out."""
        classes: dict[str, list[str]] = {}
        for number, entry in enumerate(self.entries):
            members = [self.devices[position] for position in np.flatnonzero(self._class == number)]
            if members:
                classes.setdefault(entry.profile.name, []).extend(members)
        return classes

    def __len__(self) -> int:
        return len(self.devices)

    def _vary(self, entry: FleetEntry, position: int) -> Profile:
        speed, link = (float(factor) for factor in np.exp(entry.spread * self._normals[position]))
        base = entry.profile
        return replace(base, flops=base.flops * speed, down=base.down * link, up=base.up * link)


def build_fleet(name_or_path: str | Path, devices: Sequence[str], seed: int) -> Fleet:
    """A shipped fleet, or the fleet of a file, for these devices."""
    return Fleet(find_entries(name_or_path), devices, seed)


def names() -> list[str]:
    """The names of the shipped fleets."""
    return list(shipped_fleets())


def describe(name_or_path: str | Path) -> list[dict[str, object]]:
    """One row per class of a fleet, with the keys that `undergrowth fleets --json` prints."""
    return [
        {
            "device": entry.profile.name,
            "share": entry.fraction,
            "count": entry.count or 1 if entry.fraction is None else None,
            "spread": entry.spread,
            "flops": entry.profile.flops,
            "achieved_flops": entry.profile.achieved_flops,
            "memory_bytes": entry.profile.memory,
            "down": entry.profile.down,
            "up": entry.profile.up,
            "latency": entry.profile.latency,
            "compute_watts": entry.profile.compute_watts,
            "radio_watts": entry.profile.radio_watts,
            "battery": entry.profile.battery,
            "runtime_bytes": entry.profile.runtime,
            "source": entry.profile.source,
        }
        for entry in find_entries(name_or_path)
    ]


def _class_sizes(entries: Sequence[FleetEntry], devices: int) -> tuple[np.ndarray, bool]:
    """The number of devices in each class, and whether classes are assigned at random."""
    if entries[0].fraction is not None:
        exact = np.array([entry.fraction for entry in entries], dtype=np.float64) * devices
        # Rounded first, so that 0.3 of 10 is 3 and not slightly less.
        sizes = np.floor(exact.round(9)).astype(np.int64)
        by_remainder = np.argsort(sizes - exact, kind="stable")  # largest remainder first, then the order of the file
        sizes[by_remainder[: devices - int(sizes.sum())]] += 1
        return sizes, True
    has_counts = entries[0].count is not None
    sizes = np.array([entry.count or 1 for entry in entries], dtype=np.int64)
    if int(sizes.sum()) != devices:
        what = "counts add up to" if has_counts else "entries name"
        raise InputError(
            f"fleet: its {what} {int(sizes.sum())} devices and the data is partitioned over {devices}; "
            "make the two numbers equal, or give shares instead"
        )
    return sizes, has_counts
