"""Device profiles: what one device can do, and the profiles that the package ships in `profiles.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from undergrowth.core import InputError, suggest
from undergrowth.devices.figures import Figure, check_figures, read_figures
from undergrowth.devices.plain_yaml import load_shipped

_FIGURES = {
    "flops": Figure("FLOP/s in float32"),
    "share": Figure("the fraction of the peak that training reaches, at most 1", at_most=1),
    "memory": Figure("bytes", whole=True),
    "down": Figure("bytes per second"),
    "up": Figure("bytes per second"),
    "latency": Figure("seconds one way", zero=True),
    "compute_watts": Figure("watts", zero=True),
    "radio_watts": Figure("watts", zero=True),
    "battery": Figure("joules; leave it out for a device on mains power", optional=True),
    "runtime": Figure("bytes", zero=True, whole=True),
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
        check_figures(f"profile '{self.name}'", self, _FIGURES)

    @property
    def achieved_flops(self) -> float:
        """FLOP/s that training reaches."""
        return self.flops * self.share


def read_profile(values: Mapping[str, object]) -> Profile:
    """The profile with these keys of a YAML file. `share` defaults to 1, `latency` and `runtime` to 0."""
    values = {"share": 1.0, "latency": 0.0, **values}
    return Profile(**read_figures(f"profile '{values.get('name', 'without a name')}'", Profile, values, _FIGURES))


@cache
def shipped_profiles() -> dict[str, Profile]:
    """The profiles of `profiles.yaml` by name."""
    return {name: read_profile({"name": name, **values}) for name, values in load_shipped("profiles.yaml").items()}


def find_profile(name: str) -> Profile:
    """The shipped profile with this name."""
    profiles = shipped_profiles()
    if name not in profiles:
        raise InputError(f"profile: unknown name '{name}'; {suggest(name, profiles)}")
    return profiles[name]
