"""Availability: when a device can be asked, and what may go wrong with a job once it was given one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Protocol

import numpy as np

from undergrowth.core.context import Context
from undergrowth.core.errors import InputError, nearest
from undergrowth.devices.traces import read_trace

DAY = 86_400.0  # seconds
# Diurnal windows open and close on a grid that floats hold exactly, so that `on` and `until` agree to the last bit.
_TICKS = 1024  # per second
_KINDS = ("always", "diurnal", "trace")


class Availability(Protocol):
    """Windows during which devices are on, each from its opening up to, but not including, its end."""

    def on(self, time: float) -> np.ndarray:
        """Whether each device is on, in the order of the devices."""
        ...

    def until(self, device: str, time: float) -> float:
        """When the window that is open at `time` ends: infinity if never, `time` itself if none is open."""
        ...

    def next_on(self, time: float, devices: Sequence[str] | None = None) -> float:
        """The earliest moment from `time` on at which any device, or any of these, is on: infinity if none is."""
        ...


class Always:
    """Every device is on, for good."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._count = len(devices)

    def on(self, time: float) -> np.ndarray:
        return np.ones(self._count, dtype=np.bool_)

    def until(self, device: str, time: float) -> float:
        return math.inf

    def next_on(self, time: float, devices: Sequence[str] | None = None) -> float:
        return time if (self._count if devices is None else devices) else math.inf


class Diurnal:
    """Every device is on for the same share of each day, from an hour of its own.

    The hour comes from the seed and the device's name alone: it stays when other devices come or go, and looking it up
    needs no table of names. At time 0 some devices are in a window that opened the day before.
    """

    def __init__(self, share: float, devices: Sequence[str], seed: int) -> None:
        self._seed = seed
        self._length = max(1, round(share * DAY * _TICKS)) / _TICKS
        self._opens = self._hours(devices)

    def on(self, time: float) -> np.ndarray:
        return self._on(time, self._opens)

    def until(self, device: str, time: float) -> float:
        if self._length >= DAY:
            return math.inf
        moment = math.fmod(time, DAY)
        midnight = time - moment
        opens = self._hour(device)
        closes = opens + self._length
        if moment < closes - DAY:
            return midnight + (closes - DAY)
        if opens <= moment < closes:
            return midnight + closes
        return time

    def next_on(self, time: float, devices: Sequence[str] | None = None) -> float:
        opens = self._opens if devices is None else self._hours(devices)
        if self._on(time, opens).any():
            return time
        if not len(opens):
            return math.inf
        moment = math.fmod(time, DAY)
        later = opens[opens > moment]
        return time - moment + float(later.min() if len(later) else DAY + opens.min())

    def _on(self, time: float, opens: np.ndarray) -> np.ndarray:
        moment = math.fmod(time, DAY)  # exact, unlike a difference with the opening
        closes = opens + self._length  # past midnight for a window that wraps
        return ((opens <= moment) & (moment < closes)) | (moment < closes - DAY)

    def _hours(self, devices: Sequence[str]) -> np.ndarray:
        return np.fromiter((self._hour(device) for device in devices), np.float64, len(devices))

    def _hour(self, device: str) -> float:
        """When the device's window opens, in seconds after midnight."""
        return Context(self._seed, device, 0).key("diurnal") % int(DAY * _TICKS) / _TICKS


def availability(text: str, devices: Sequence[str], seed: int) -> Availability:
    """What a configuration asks for: `always`, `diurnal:SHARE` (of each day, 0.5 if left out) or `trace:FILE.csv`."""
    kind, colon, argument = (part.strip() for part in text.partition(":"))
    if kind == "always" and not colon:
        return Always(devices)
    if kind == "diurnal":
        return Diurnal(_share(text, argument) if colon else 0.5, devices, seed)
    if kind == "trace" and argument:
        return read_trace(argument, devices)
    if kind == "always":
        raise InputError(f"fleet.availability is '{text}'; 'always' takes nothing after it")
    if kind == "trace":
        raise InputError(f"fleet.availability is '{text}'; name the file, such as 'trace:phones.csv'")
    raise InputError(f"fleet.availability: unknown kind '{kind}'; {nearest(kind, _KINDS)}")


@dataclass(frozen=True)
class Failures:
    """What may go wrong with one job. Drawn from the job's context, so the same on every engine."""

    dropout: float = 0.0  # chance that a device that was asked never starts
    failure: float = 0.0  # chance that it fails somewhere in the middle of its work

    def check(self) -> None:
        """Refuses what is no chance."""
        for field, value in (("dropout", self.dropout), ("failure", self.failure)):
            if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= value <= 1:
                raise InputError(f"fleet.{field} is {value!r} and must be a chance between 0 (never) and 1 (every job)")

    def draw(self, context: Context) -> tuple[str, float] | None:
        """Why the device is lost, and after which share of the job's time; None if all goes well."""
        # A purpose for each, so that switching one of them on changes nothing about whom the other one hits.
        if self.dropout and _uniform(context, "dropout") < self.dropout:
            return "dropout", 0.0
        if self.failure:
            number = _uniform(context, "failure")
            if number < self.failure:
                return "failure", number / self.failure  # uniform again, which saves a second draw
        return None


def _uniform(context: Context, purpose: str) -> float:
    """A number in [0, 1). A float holds 53 of the key's 63 bits; rounding instead of cutting could give 1."""
    return (context.key(purpose) >> 10) * 2.0**-53


def _share(text: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise InputError(
            f"fleet.availability is '{text}'; the share of the day after 'diurnal:' must lie above 0 and at most at 1"
        )
    return share
