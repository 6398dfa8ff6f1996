"""What a piece of work costs a device, in seconds and joules, and whether it fits in the device's memory."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

from undergrowth.core import split_limit
from undergrowth.devices.profile import Profile


@dataclass(frozen=True)
class Work:
    """The work of one job on one device.

    memory: peak in bytes of weights, gradients, optimiser state, activations saved for the backward pass, and one
        batch. The shard is not included, because a device may stream its data from disk.
    samples: samples over all steps; each epoch counts its samples again.
    bytes_up: size of the upload.
    calls: tensor operations in the steps. A recurrent layer counts as the operations of all positions.
    updates: the work of each update of a client that does several, if there are several.
    """

    flops: float
    memory: int
    steps: int
    samples: int
    bytes_up: int = 0
    calls: int = 0
    updates: tuple[Work, ...] = ()

    def fraction(self, limit: int, of: int | None = None) -> float:
        """The FLOPs of `limit` steps divided by those of `of` steps, or of all. Several updates divide the steps."""
        if not self.updates:
            return limit / (of or self.steps)
        return self._flops_of(limit) / (self._flops_of(of or self.steps) or 1.0)

    def most_steps(self, fraction: float) -> int:
        """The most steps that take at most this part of the FLOPs; 0 if the first ones take more."""
        if not self.updates:
            return int(fraction * self.steps)
        return bisect_right(range(1, self.steps + 1), fraction, key=self.fraction)

    def _flops_of(self, limit: int) -> float:
        limits = split_limit(limit, [update.steps for update in self.updates])
        done = zip(self.updates, limits, strict=True)
        return sum(update.flops * (steps / update.steps if update.steps else 1.0) for update, steps in done)


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
