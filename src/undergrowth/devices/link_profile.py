"""Link profiles: what a link between two servers can do, and the profiles that the package ships in `links.yaml`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from undergrowth.core import InputError, suggest
from undergrowth.devices.figures import Figure, check_figures, read_figures
from undergrowth.devices.plain_yaml import load_shipped

_FIGURES = {
    "down": Figure("bytes per second towards the devices", infinite=True),
    "up": Figure("bytes per second towards the root", infinite=True),
    "latency": Figure("seconds one way", zero=True),
    "joules_per_byte": Figure("joules that the network takes for one byte", zero=True),
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
        check_figures(f"link '{self.name}'", self, _FIGURES)

    def seconds_down(self, size: int) -> float:
        """The seconds until a packet of `size` bytes from the parent has arrived as a whole."""
        return self.latency + size / self.down

    def seconds_up(self, size: int) -> float:
        """The seconds until a packet of `size` bytes has arrived at the parent as a whole."""
        return self.latency + size / self.up


FREE = LinkProfile("free", math.inf, math.inf)


def read_link(values: Mapping[str, object]) -> LinkProfile:
    """The link with these figures. `latency` and `joules_per_byte` default to 0."""
    values = {"name": "of fleet.server_link", **values}
    return LinkProfile(**read_figures(f"link '{values['name']}'", LinkProfile, values, _FIGURES))


@cache
def shipped_links() -> dict[str, LinkProfile]:
    """The profiles of `links.yaml` by name."""
    return {name: read_link({"name": name, **values}) for name, values in load_shipped("links.yaml").items()}


def find_link(link: str | Mapping[str, object], setting: str = "fleet.server_link") -> LinkProfile:
    """The shipped profile with this name, or the profile with these figures. `setting`: what gives them."""
    if not isinstance(link, str):
        return read_link(link)
    profiles = shipped_links()
    if link not in profiles:
        raise InputError(f"{setting} '{link}' is not known; {suggest(link, profiles)}")
    return profiles[link]
