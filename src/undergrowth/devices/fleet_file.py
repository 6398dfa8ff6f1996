"""Fleet files, and the fleets that the package ships in `fleets.yaml`.

A fleet file is YAML. Each entry names a shipped profile or defines one, and says how many devices have it::

    devices:
      - {profile: raspberry-pi-4, share: 0.75, spread: 0.2}
      - profile: {name: mine, flops: 2e9, memory: 64e6, down: 1e6, up: 5e5, compute_watts: 2, radio_watts: 1}
        share: 0.25

Either every entry has a `share` (the fraction of the devices; the shares add up to 1), or every entry has a `count`
(the counts add up to the number of devices), or no entry has either. In the last case every entry is one device, in
the order of the devices. `spread` is the sigma of the log-normal factors by which speed and bandwidth vary within the
class: with 0.2, two thirds of the devices are within 20 % of the profile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from os.path import expanduser
from pathlib import Path
from typing import Any

from undergrowth.core import InputError, suggest
from undergrowth.devices.plain_yaml import is_number, load_file, load_shipped
from undergrowth.devices.profile import Profile, find_profile, read_profile

_KEYS = ("profile", "share", "count", "spread")


@dataclass(frozen=True)
class FleetEntry:
    """One class of devices. Its size is a fraction of the fleet or a count; without either it is one device."""

    profile: Profile
    fraction: float | None = None
    count: int | None = None
    spread: float = 0.0


def find_entries(name_or_path: str | Path) -> tuple[FleetEntry, ...]:
    """The classes of a shipped fleet or of a fleet file."""
    text = str(name_or_path)
    fleets = shipped_fleets()
    if text in fleets:
        return fleets[text]
    path = Path(expanduser(text))  # unlike Path.expanduser, it does not raise for an unknown user
    if path.is_file():
        return _read_file(path)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        raise InputError(f"fleet: there is no file '{text}'; give the path of a fleet file or the name of a fleet")
    raise InputError(f"fleet: unknown name '{text}'; {suggest(text, fleets)}")


@cache
def shipped_fleets() -> dict[str, tuple[FleetEntry, ...]]:
    """The fleets of `fleets.yaml` by name."""
    return {name: _read_entries(rows, f"fleet '{name}'") for name, rows in load_shipped("fleets.yaml").items()}


def _read_file(path: Path) -> tuple[FleetEntry, ...]:
    content = load_file(path, f"fleet file '{path}'")
    rows = content.get("devices") if isinstance(content, Mapping) else None
    if not isinstance(rows, list) or not rows or set(content) != {"devices"}:
        raise InputError(f"fleet file '{path}' must have one key, 'devices', with a list of at least one entry")
    return _read_entries(rows, f"fleet file '{path}'")


def _read_entries(rows: list[Any], file: str) -> tuple[FleetEntry, ...]:
    entries = tuple(_read_entry(row, f"{file}, entry {number}") for number, row in enumerate(rows, start=1))
    known: dict[str, Profile] = {}
    for number, entry in enumerate(entries, start=1):
        if known.setdefault(entry.profile.name, entry.profile) != entry.profile:
            raise InputError(f"{file}, entry {number}: another profile is named '{entry.profile.name}'; rename one")
    with_fraction = [entry.fraction for entry in entries if entry.fraction is not None]
    with_count = [entry for entry in entries if entry.count is not None]
    if len(with_fraction) not in (0, len(entries)) or len(with_count) not in (0, len(entries)):
        raise InputError(f"{file}: give every entry a share, or every entry a count, or no entry either of them")
    if with_fraction and not math.isclose(total := sum(with_fraction), 1.0, abs_tol=1e-6):
        raise InputError(f"{file}: the shares add up to {total:g} and must add up to 1")
    return entries


def _read_entry(row: Any, place: str) -> FleetEntry:
    if not isinstance(row, Mapping) or "profile" not in row:
        raise InputError(f"{place} is {row!r} and must have a 'profile', such as {{profile: raspberry-pi-4, share: 1}}")
    for key in row:
        if key not in _KEYS:
            raise InputError(f"{place}: unknown key '{key}'; {suggest(str(key), _KEYS)}")
    if "share" in row and "count" in row:
        raise InputError(f"{place} has a share and a count; give one of them")
    given = row["profile"]
    profile = read_profile(given) if isinstance(given, Mapping) else find_profile(str(given))
    fraction: Any = row.get("share")
    count: Any = row.get("count")
    spread: Any = row.get("spread", 0.0)
    if "share" in row and not (is_number(fraction) and 0 < fraction <= 1):
        raise InputError(f"{place}: share is {fraction!r} and must be a number above 0 and at most 1")
    if "count" in row and (not isinstance(count, int) or isinstance(count, bool) or not 1 <= count < 2**31):
        raise InputError(f"{place}: count is {count!r} and must be a whole number from 1 to {2**31 - 1}")
    if not (is_number(spread) and 0 <= spread <= 3):
        raise InputError(f"{place}: spread is {spread!r} and must be a number from 0 (no variation) to 3")
    return FleetEntry(profile, fraction, count, float(spread))
