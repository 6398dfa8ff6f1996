"""What a piece of work costs a device, in seconds and joules, and whether it fits."""

from __future__ import annotations

from typing import NamedTuple

from undergrowth.devices.profile import Profile
from undergrowth.devices.work import Work


class Price(NamedTuple):  # a tuple, because a simulation makes a million of them
    seconds_down: float
    seconds_compute: float
    seconds_up: float
    joules: float
    fits: bool  # in the device's memory

    @property
    def seconds(self) -> float:
        return self.seconds_down + self.seconds_compute + self.seconds_up


def price(profile: Profile, work: Work, bytes_down: int, bytes_up: int) -> Price:
    """Download, compute, upload, one after the other. The radio draws power while bytes move, not while they travel."""
    receiving = bytes_down / profile.down
    sending = bytes_up / profile.up
    computing = work.flops / (profile.flops * profile.share)
    return Price(
        profile.latency + receiving,
        computing,
        profile.latency + sending,
        profile.compute_watts * computing + profile.radio_watts * (receiving + sending),
        work.memory <= profile.memory,
    )
