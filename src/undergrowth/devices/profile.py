"""Device profiles: what one device can do, and the profiles that the package ships in `profiles.yaml`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib import resources
from numbers import Real
from typing import Any

from undergrowth.core.errors import InputError, suggest
from undergrowth.devices.plain_yaml import load_yaml

# Numeric field → whether 0 is allowed, and the unit in words.
_NUMBERS = {
    "flops": (False, "FLOP/s in float32"),
    "share": (False, "the fraction of the peak that training reaches, at most 1"),
    "memory": (False, "bytes"),
    "down": (False, "bytes per second"),
    "up": (False, "bytes per second"),
    "latency": (True, "seconds one way"),
    "compute_watts": (True, "watts"),
    "radio_watts": (True, "watts"),
    "battery": (False, "joules; leave it out for a device on mains power"),
    "runtime": (True, "bytes"),
}


@dataclass(frozen=True)
class Profile:
    """What one device can do. The fields have the names of the keys in a fleet file.

    A number out of range raises an `InputError` that names the field, the value and the range.
    """

    name: str
    flops: float  # peak, FLOP/s in float32
    share: float  # fraction of the peak that training reaches
    memory: int  # bytes that the operating system leaves for the runtime and the training
    down: float  # bytes/s
    up: float  # bytes/s
    latency: float  # seconds one way
    compute_watts: float
    radio_watts: float
    battery: float | None = None  # joules; None: mains power
    runtime: int = 0  # bytes that the program takes before it trains: the interpreter and its libraries
    source: str = "given by the user"  # where the figures come from

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"profile: name {self.name!r} must be a text, such as 'raspberry-pi-4'")
        for field, (zero_allowed, unit) in _NUMBERS.items():
            value = getattr(self, field)
            if field == "battery" and value is None:
                continue
            is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
            too_large = is_number and field == "share" and value > 1
            if not is_number or too_large or value < 0 or (value == 0 and not zero_allowed):
                right = "a number of at least 0" if zero_allowed else "a number above 0"
                raise InputError(f"profile '{self.name}': {field} is {value!r} and must be {right} ({unit})")

    @property
    def achieved_flops(self) -> float:
        """FLOP/s that training reaches."""
        return self.flops * self.share


def read_profile(values: Mapping[str, object]) -> Profile:
    """The profile with these keys of a YAML file. `share` defaults to 1, `latency` and `runtime` to 0."""
    values = {"share": 1.0, "latency": 0.0, **values}
    name = values.get("name", "without a name")
    known = {field.name: field for field in fields(Profile)}
    for key in values:
        if key not in known:
            raise InputError(f"profile '{name}': unknown field '{key}'; {suggest(str(key), known)}")
    for key, field in known.items():
        if key not in values and field.default is MISSING:
            unit = _NUMBERS[key][1] if key in _NUMBERS else "a text"
            raise InputError(f"profile '{name}': {key} is missing; give it ({unit})")
    numbers: dict[str, Any] = {key: _number(key, value) for key, value in values.items()}
    return Profile(**numbers)


def _number(key: str, value: object) -> object:
    """`value` as a number. YAML reads a number such as 2e9, which has no point, as a text."""
    if key not in _NUMBERS or not isinstance(value, str):
        return value
    try:
        number = float(value)
    except ValueError:
        return value  # Profile refuses it and names the field
    return int(number) if key in ("memory", "runtime") and number.is_integer() else number


@cache
def shipped_profiles() -> dict[str, Profile]:
    """The profiles of `profiles.yaml` by name."""
    table = load_yaml(resources.files("undergrowth.devices").joinpath("profiles.yaml").read_text(encoding="utf-8"))
    return {name: read_profile({"name": name, **values}) for name, values in table.items()}


def find_profile(name: str) -> Profile:
    """The shipped profile with this name."""
    profiles = shipped_profiles()
    if name not in profiles:
        raise InputError(f"profile: unknown name '{name}'; {suggest(name, profiles)}")
    return profiles[name]
