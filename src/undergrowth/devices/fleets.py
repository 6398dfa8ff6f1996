"""The fleets that are shipped, and fleet files.

A fleet file is YAML. Each entry names a shipped profile or gives one of its own, and says how many devices have it::

    devices:
      - {profile: raspberry-pi-4, share: 0.75, spread: 0.2}
      - profile: {name: mine, flops: 2e9, memory: 64e6, down: 1e6, up: 5e5, compute_watts: 2, radio_watts: 1}
        share: 0.25

All entries give a `share` (of the devices; the shares add up to 1), or all give a `count` (the counts add up to the
number of devices), or none gives either: then every entry is one device, in the order of the devices. `spread` is the
sigma of the log-normal factors by which speed and bandwidth differ inside the class (0.2: two thirds of the
devices lie within a fifth of the profile).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from os.path import expanduser
from pathlib import Path
from typing import Any

from undergrowth.core.errors import InputError, nearest
from undergrowth.devices.profile import Profile, read_profile
from undergrowth.devices.profiles import PROFILES, profile


@dataclass(frozen=True)
class Entry:
    """One class of devices: how many there are as a share, as a count, or one where neither is given."""

    profile: Profile
    share: float | None = None
    count: int | None = None
    spread: float = 0.0


def _shares(spread: float, **shares: float) -> tuple[Entry, ...]:
    return tuple(Entry(PROFILES[name.replace("_", "-")], share, None, spread) for name, share in shares.items())


# A new fleet is one line here.
FLEETS: dict[str, tuple[Entry, ...]] = {
    "uniform": _shares(0.0, uniform=1.0),
    "reft-5": _shares(0.0, reft_10=0.2, reft_20=0.2, reft_40=0.2, reft_60=0.2, reft_100=0.2),
    "mixed-edge": _shares(
        0.2, raspberry_pi_zero_2=0.2, **{"raspberry-pi-3b+": 0.2}, raspberry_pi_4=0.2, raspberry_pi_5=0.15,
        phone_mid=0.15, jetson_nano=0.1,
    ),
    "phones": _shares(0.3, phone_low=0.4, phone_mid=0.4, phone_high=0.2),
    "cross-silo": _shares(0.1, edge_server=0.5, desktop_gpu=0.5),
}  # fmt: skip


def entries(name_or_path: str | Path) -> tuple[Entry, ...]:
    """The classes of a shipped fleet, or of a user's file."""
    text = str(name_or_path)
    if text in FLEETS:
        return FLEETS[text]
    path = Path(expanduser(text))  # which leaves a user who is not there alone
    if path.is_file():
        return read_entries(path)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        raise InputError(f"fleet: there is no file '{text}'; give the path of a fleet file or a name from the fleets")
    raise InputError(f"fleet: unknown name '{text}'; {nearest(text, FLEETS)}")


def read_entries(path: Path) -> tuple[Entry, ...]:
    """The classes that a fleet file names."""
    import yaml  # only those who have a fleet file need it

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"fleet file '{path}' cannot be read: {' '.join(str(error).split())}") from None
    rows = content.get("devices") if isinstance(content, Mapping) else None
    if not isinstance(rows, list) or not rows or set(content) != {"devices"}:
        raise InputError(f"fleet file '{path}' must have one key, 'devices', with a list of at least one entry")
    found = tuple(_entry(row, f"fleet file '{path}', entry {number}") for number, row in enumerate(rows, start=1))
    forms = {"share" if row.share is not None else "count" if row.count is not None else "one" for row in found}
    if len(forms) > 1:
        raise InputError(f"fleet file '{path}': give every entry a share, every entry a count, or none of them either")
    if forms == {"share"} and not math.isclose(total := sum(row.share or 0.0 for row in found), 1.0, abs_tol=1e-6):
        raise InputError(f"fleet file '{path}': the shares add up to {total:g} and must add up to 1")
    return found


def _entry(row: Any, place: str) -> Entry:
    if not isinstance(row, Mapping) or "profile" not in row:
        raise InputError(f"{place} is {row!r} and must have a 'profile', such as {{profile: raspberry-pi-4, share: 1}}")
    keys = ("profile", "share", "count", "spread")
    for key in row:
        if key not in keys:
            raise InputError(f"{place}: unknown key '{key}'; {nearest(str(key), keys)}")
    if "share" in row and "count" in row:
        raise InputError(f"{place} has a share and a count; give one of them")
    given = row["profile"]
    found = read_profile(given) if isinstance(given, Mapping) else profile(str(given))
    share: Any
    count: Any
    share, count, spread = row.get("share"), row.get("count"), row.get("spread", 0.0)
    if "share" in row and not (_finite(share) and 0 < share <= 1):
        raise InputError(f"{place}: share is {share!r} and must lie above 0 and at most at 1")
    if "count" in row and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        raise InputError(f"{place}: count is {count!r} and must be a whole number of at least 1")
    if not (_finite(spread) and 0 <= spread <= 3):
        raise InputError(f"{place}: spread is {spread!r} and must lie between 0 (all alike) and 3")
    return Entry(found, share, count, float(spread))


def _finite(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
