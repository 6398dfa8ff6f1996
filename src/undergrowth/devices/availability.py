"""Availability: when devices are on, and what may go wrong with a job once a device has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from undergrowth.core import Context
from undergrowth.core.notation import Form, Number, parse_with_word
from undergrowth.devices.traces import read_trace

DAY = 86_400.0  # seconds
# Diurnal windows open and close on a grid that floats represent exactly, so that `on` and `until` always agree.
_TICKS = 1024  # per second
_FORMS = {
    "always": Form(),
    "diurnal": Form((Number("FRACTION", above=0, at_most=1, default=0.5),), "diurnal:0.3"),
    "trace": Form(example="trace:phones.csv", rest="FILE"),
}


class Availability(Protocol):
    """Windows during which devices are on. A window includes its start and excludes its end."""

    def on(self, time: float) -> np.ndarray:
        """Whether each device is on, in the order of the devices."""
        ...

    def until(self, device: str, time: float) -> float:
        """When the window that is open at `time` ends: infinity if never, `time` itself if no window is open."""
        ...

    def next_on(self, time: float, devices: Sequence[str]) -> float:
        """The earliest moment from `time` on at which one of `devices` is on, or infinity."""
        ...


class Diurnal:
    """Every device is on for the same fraction of each day; the time at which its window opens is random.

    The opening time is derived from the seed and the name of the device, so it does not change when other devices are
    added or removed, and no table is needed to look it up. At time 0 some devices are in a window that opened the day
    before.
    """

    def __init__(self, fraction: float, devices: Sequence[str], seed: int) -> None:
        self._seed = seed
        self._length = max(1, round(fraction * DAY * _TICKS)) / _TICKS
        self._opens = self._opening_times(devices)

    def on(self, time: float) -> np.ndarray:
        return self._on(time, self._opens)

    def until(self, device: str, time: float) -> float:
        if self._length >= DAY:
            return math.inf
        time_of_day = math.fmod(time, DAY)
        midnight = time - time_of_day
        opens = self._opening_time(device)
        closes = opens + self._length
        if time_of_day < closes - DAY:
            return midnight + (closes - DAY)
        if opens <= time_of_day < closes:
            return midnight + closes
        return time

    def next_on(self, time: float, devices: Sequence[str]) -> float:
        opens = self._opening_times(devices)
        if self._on(time, opens).any():
            return time
        if not len(opens):
            return math.inf
        time_of_day = math.fmod(time, DAY)
        later = opens[opens > time_of_day]
        return time - time_of_day + float(later.min() if len(later) else DAY + opens.min())

    def _on(self, time: float, opens: np.ndarray) -> np.ndarray:
        time_of_day = math.fmod(time, DAY)  # exact, unlike subtracting the opening time
        closes = opens + self._length  # past midnight for a window that wraps
        return ((opens <= time_of_day) & (time_of_day < closes)) | (time_of_day < closes - DAY)

    def _opening_times(self, devices: Sequence[str]) -> np.ndarray:
        return np.fromiter((self._opening_time(device) for device in devices), np.float64, len(devices))

    def _opening_time(self, device: str) -> float:
        """When the window of the device opens, in seconds after midnight."""
        return Context(self._seed, device, 0).key("diurnal") % int(DAY * _TICKS) / _TICKS


def build_availability(text: str, devices: Sequence[str], seed: int) -> Availability | None:
    """The availability that a setting describes: `diurnal[:FRACTION]` (of each day) or `trace:FILE.csv`.

    None for `always`: every device is on all the time.
    """
    kind, numbers, file = parse_with_word("fleet.availability", text, _FORMS)
    if kind == "trace":
        return read_trace(file, devices)
    return None if kind == "always" else Diurnal(numbers[0], devices, seed)


@dataclass(frozen=True)
class Failures:
    """What may go wrong with one job. Drawn from the context of the job, so every engine sees the same failures."""

    dropout: float = 0.0  # probability that a device never starts the job
    failure: float = 0.0  # probability that a device fails in the middle of the job

    def draw(self, context: Context) -> tuple[str, float] | None:
        """Why the job is lost and after which fraction of its time; None if nothing goes wrong."""
        # One purpose per kind, so that enabling one kind does not change which jobs the other kind hits.
        if self.dropout and _uniform(context, "dropout") < self.dropout:
            return "dropout", 0.0
        if self.failure:
            number = _uniform(context, "failure")
            if number < self.failure:
                return "failure", number / self.failure  # uniform again, which saves a second draw
        return None


def _uniform(context: Context, purpose: str) -> float:
    """A number in [0, 1). A float holds 53 of the key's 63 bits; the others are cut, because rounding could give 1."""
    return (context.key(purpose) >> 10) * 2.0**-53
