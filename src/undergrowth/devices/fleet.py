"""Fleet: which device has which profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from undergrowth.core.errors import InputError
from undergrowth.devices.fleets import FLEETS, Entry, entries
from undergrowth.devices.profile import Profile


class Fleet:
    """A profile for every device, the same ones for the same seed.

    Classes are dealt out at random, so that a device's class says nothing about its data. Profiles with a spread are
    made when they are asked for: a fleet of 100 000 devices costs nothing until it is used.
    """

    def __init__(self, rows: Sequence[Entry], devices: Sequence[str], seed: int) -> None:
        self.devices = tuple(devices)
        self.rows = tuple(rows)
        self._index = {device: place for place, device in enumerate(self.devices)}
        draw = np.random.default_rng([seed, len(self.devices)])
        sizes, shuffle = _sizes(self.rows, len(self.devices))
        self._class = np.repeat(np.arange(len(self.rows)), sizes)
        if shuffle:
            self._class = draw.permutation(self._class)
        # One factor for the speed and one for the link, which have little to do with each other.
        self._draws = draw.standard_normal((len(self.devices), 2))
        self._made: dict[str, Profile] = {}

    def profile(self, device: str) -> Profile:
        found = self._made.get(device)
        if found is None:
            place = self._index[device]
            row = self.rows[self._class[place]]
            found = self._made[device] = self._spread(row, place) if row.spread else row.profile
        return found

    @cached_property
    def classes(self) -> dict[str, list[str]]:
        """The devices of every class, by the name of its profile; classes without a device are left out."""
        found: dict[str, list[str]] = {}
        for number, row in enumerate(self.rows):
            members = [self.devices[place] for place in np.flatnonzero(self._class == number)]
            if members:
                found.setdefault(row.profile.name, []).extend(members)
        return found

    def __len__(self) -> int:
        return len(self.devices)

    def _spread(self, row: Entry, place: int) -> Profile:
        speed, link = (float(factor) for factor in np.exp(row.spread * self._draws[place]))
        base = row.profile
        return replace(base, flops=base.flops * speed, down=base.down * link, up=base.up * link)


def fleet(name_or_path: str | Path, devices: Sequence[str], seed: int) -> Fleet:
    """A shipped fleet, or that of a user's file, for these devices."""
    return Fleet(entries(name_or_path), devices, seed)


def names() -> list[str]:
    """The shipped fleets."""
    return list(FLEETS)


def describe(name_or_path: str | Path) -> list[dict[str, object]]:
    """A row for every class of a fleet, as shown to users."""
    return [
        {
            "device": row.profile.name,
            "share": row.share,
            "count": row.count or 1 if row.share is None else None,
            "spread": row.spread,
            "flops": row.profile.flops,
            "achieved_flops": row.profile.rate,
            "memory_bytes": row.profile.memory,
            "down": row.profile.down,
            "up": row.profile.up,
            "latency": row.profile.latency,
            "compute_watts": row.profile.compute_watts,
            "radio_watts": row.profile.radio_watts,
            "battery": row.profile.battery,
            "source": row.profile.source,
        }
        for row in entries(name_or_path)
    ]


def _sizes(rows: Sequence[Entry], devices: int) -> tuple[np.ndarray, bool]:
    """How many devices each class has, and whether they are dealt out at random."""
    if rows[0].share is not None:
        exact = np.array([row.share for row in rows], dtype=np.float64) * devices
        # Rounded first, so that 0.3 of 10 is 3 and not a hair less.
        sizes = np.floor(exact.round(9)).astype(np.int64)
        largest = np.argsort(sizes - exact, kind="stable")  # largest remainder first, then the order of the file
        sizes[largest[: devices - int(sizes.sum())]] += 1
        return sizes, True
    counted = rows[0].count is not None
    sizes = np.array([row.count or 1 for row in rows], dtype=np.int64)
    if int(sizes.sum()) != devices:
        what = "counts add up to" if counted else "entries name"
        raise InputError(
            f"fleet: its {what} {int(sizes.sum())} devices and the data is spread over {devices}; "
            "make them the same, or give shares instead"
        )
    return sizes, counted
