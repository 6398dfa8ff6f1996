"""Link profiles: what a link between two servers can do, and the profiles that the package ships in `links.yaml`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from numbers import Real

from undergrowth.core.errors import InputError, suggest
from undergrowth.devices.plain_yaml import load_yaml

# Numeric field → whether 0 is allowed, and the unit in words. A rate may be infinite.
_NUMBERS = {
    "down": (False, "bytes per second towards the devices"),
    "up": (False, "bytes per second towards the root"),
    "latency": (True, "seconds one way"),
    "joules_per_byte": (True, "joules that the network takes for one byte"),
}


@dataclass(frozen=True)
class LinkProfile:
    """The link of a server to its parent. The fields have the names of the keys in `links.yaml`."""

    name: str
    down: float  # bytes/s
    up: float  # bytes/s
    latency: float = 0.0  # seconds one way
    joules_per_byte: float = 0.0  # of the network, not of the two servers
    source: str = "given by the user"

    def __post_init__(self) -> None:
        for field, (zero_allowed, unit) in _NUMBERS.items():
            value = getattr(self, field)
            is_number = isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)
            endless = is_number and field not in ("down", "up") and math.isinf(value)
            if not is_number or endless or value < 0 or (value == 0 and not zero_allowed):
                right = "a number of at least 0" if zero_allowed else "a number above 0"
                raise InputError(f"link '{self.name}': {field} is {value!r} and must be {right} ({unit})")

    def seconds_down(self, size: int) -> float:
        """The seconds until a packet of `size` bytes from the parent has arrived as a whole."""
        return self.latency + size / self.down

    def seconds_up(self, size: int) -> float:
        """The seconds until a packet of `size` bytes has arrived at the parent as a whole."""
        return self.latency + size / self.up


FREE = LinkProfile("free", math.inf, math.inf)


def read_link(values: Mapping[str, object]) -> LinkProfile:
    """The link with these figures. `latency` and `joules_per_byte` default to 0."""
    name = values.get("name", "of fleet.server_link")
    known = [field.name for field in fields(LinkProfile)]
    for key in values:
        if key not in known:
            raise InputError(f"link '{name}': unknown field '{key}'; {suggest(str(key), known)}")
    for key in ("down", "up"):
        if key not in values:
            raise InputError(f"link '{name}': {key} is missing; give it ({_NUMBERS[key][1]})")
    return LinkProfile(**{"name": str(name), **{key: _number(key, value) for key, value in values.items()}})  # type: ignore[arg-type]


def _number(key: str, value: object) -> object:
    """`value` as a number. YAML reads a number such as 2e9, which has no point, as a text."""
    if key not in _NUMBERS or not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value  # LinkProfile refuses it and names the field


@cache
def shipped_links() -> dict[str, LinkProfile]:
    """The profiles of `links.yaml` by name."""
    table = load_yaml(resources.files("undergrowth.devices").joinpath("links.yaml").read_text(encoding="utf-8"))
    return {name: read_link({"name": name, **values}) for name, values in table.items()}


def find_link(link: str | Mapping[str, object], setting: str = "fleet.server_link") -> LinkProfile:
    """The shipped profile with this name, or the profile with these figures. `setting`: what gives them."""
    if not isinstance(link, str):
        return read_link(link)
    profiles = shipped_links()
    if link not in profiles:
        raise InputError(f"{setting} '{link}' is not known; {suggest(link, profiles)}")
    return profiles[link]
