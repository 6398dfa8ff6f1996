"""What a piece of work costs a device, in seconds and joules, and whether it fits in the device's memory."""

from __future__ import annotations

from typing import NamedTuple

from undergrowth.devices.profile import Profile
from undergrowth.devices.work import Work


class Price(NamedTuple):  # a tuple, because a simulation creates a million of them
    """What a piece of work takes on a device."""

    seconds_down: float
    seconds_compute: float
    seconds_up: float
    joules: float
    fits: bool  # in the memory of the device, beside its runtime

    @property
    def seconds(self) -> float:
        return self.seconds_down + self.seconds_compute + self.seconds_up


def price_work(profile: Profile, work: Work, bytes_down: int, bytes_up: int) -> Price:
    """The price of a download, the work and an upload in sequence.

    The radio draws power only while bytes are sent or received, not during the latency.
    """
    receiving = bytes_down / profile.down
    sending = bytes_up / profile.up
    computing = work.flops / (profile.flops * profile.share)
    return Price(
        profile.latency + receiving,
        computing,
        profile.latency + sending,
        profile.compute_watts * computing + profile.radio_watts * (receiving + sending),
        profile.runtime + work.memory <= profile.memory,
    )
