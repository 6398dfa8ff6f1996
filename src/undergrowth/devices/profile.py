"""Profile: what one device can do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from numbers import Real

from undergrowth.core.errors import InputError, nearest

# What is right for each number: its least value, whether that value itself is allowed, and the unit in words.
_LIMITS = {
    "flops": (0.0, False, "FLOP/s in float32"),
    "share": (0.0, False, "the share of the peak that training reaches, at most 1"),
    "memory": (0.0, False, "bytes"),
    "down": (0.0, False, "bytes per second"),
    "up": (0.0, False, "bytes per second"),
    "latency": (0.0, True, "seconds one way"),
    "compute_watts": (0.0, True, "watts"),
    "radio_watts": (0.0, True, "watts"),
    "battery": (0.0, False, "joules, or nothing for a device on mains power"),
}


@dataclass(frozen=True)
class Profile:
    """Rates of one device. A number out of range raises an InputError that says what would be right."""

    name: str
    flops: float  # peak, FLOP/s in float32
    share: float  # of the peak, what training reaches
    memory: int  # bytes that training may use
    down: float  # bytes/s
    up: float  # bytes/s
    latency: float  # seconds one way
    compute_watts: float
    radio_watts: float
    battery: float | None = None  # joules; None: mains power
    source: str = "given by the user"  # where the figures come from

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"profile: name {self.name!r} must be a text, such as 'raspberry-pi-4'")
        for field, (least, allowed, unit) in _LIMITS.items():
            value = getattr(self, field)
            if field == "battery" and value is None:
                continue
            number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
            if not number or value < least or (value == least and not allowed) or (field == "share" and value > 1):
                right = "a number of at least 0" if allowed else "a number above 0"
                raise InputError(f"profile '{self.name}': {field} is {value!r} and must be {right} ({unit})")

    @property
    def rate(self) -> float:
        """FLOP/s that training reaches."""
        return self.flops * self.share


def read_profile(values: Mapping[str, object]) -> Profile:
    """A profile from the fields of a file. `share` is 1 and `latency` 0 unless they are given."""
    values = {"share": 1.0, "latency": 0.0, **values}
    name = values.get("name", "without a name")
    known = {field.name: field for field in fields(Profile)}
    for key in values:
        if key not in known:
            raise InputError(f"profile '{name}': unknown field '{key}'; {nearest(str(key), known)}")
    for key, field in known.items():
        if key not in values and field.default is MISSING:
            unit = _LIMITS[key][2] if key in _LIMITS else "a text"
            raise InputError(f"profile '{name}': {key} is missing; give it ({unit})")
    return Profile(**{key: _number(value) if key in _LIMITS else value for key, value in values.items()})  # type: ignore[arg-type]


def _number(value: object) -> object:
    """YAML reads 2e9, without a point, as a text."""
    if not isinstance(value, str):
        return value
    try:
        number = float(value)
    except ValueError:
        return value  # the profile itself says what is wrong with it
    return int(number) if number.is_integer() else number
