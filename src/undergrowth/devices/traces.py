"""Traces: availability as it was recorded, from a CSV file with a row for every window.

The columns are `device`, `on` and `off`, in seconds; others are ignored. `off` may be empty or `inf`: on for good. A
device may have many rows, in any order, or none: then it is never on.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from os.path import expanduser
from pathlib import Path

import numpy as np

from undergrowth.core.errors import InputError, nearest

_COLUMNS = ("device", "on", "off")
_MANY = 100  # a hint that lists more names than this helps nobody


class Trace:
    """Windows of every device, given in the order of devices and time and apart from each other.

    All openings and endings lie in one list, sorted by time. Who is on is kept for every so many of them, so that no
    question costs more than a pass over the devices, however long the trace is.
    """

    def __init__(self, index: Mapping[str, int], owners: np.ndarray, opens: np.ndarray, closes: np.ndarray) -> None:
        self._index = index
        self._opens, self._closes = opens, closes
        self._first = np.searchsorted(owners, np.arange(len(index) + 1))  # where the windows of a device begin

        ends = closes < math.inf
        times = np.concatenate([opens, closes[ends]])
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        self._owners = np.concatenate([owners, owners[ends]])[order]
        self._turns_on = order < len(opens)
        self._count = np.cumsum(np.where(self._turns_on, 1, -1))  # how many are on after each of them
        self._stride = max(1, len(index))
        self._known = np.zeros((len(times) // self._stride + 1, len(index)), dtype=np.bool_)
        for number in range(1, len(self._known)):
            stop = number * self._stride
            self._known[number] = self._after(self._known[number - 1], stop - self._stride, stop)

    def on(self, time: float) -> np.ndarray:
        stop = int(np.searchsorted(self._times, time, side="right"))
        block = stop // self._stride
        return self._after(self._known[block], block * self._stride, stop)

    def until(self, device: str, time: float) -> float:
        place = self._index[device]
        window = slice(self._first[place], self._first[place + 1])
        opened = int(np.searchsorted(self._opens[window], time, side="right"))
        # Of the windows that opened, only the last can still be open; otherwise none is.
        return max(time, float(self._closes[window][opened - 1])) if opened else time

    def next_on(self, time: float, devices: Sequence[str] | None = None) -> float:
        if devices is not None:
            return min((self._next_on(self._index[device], time) for device in devices), default=math.inf)
        stop = int(np.searchsorted(self._times, time, side="right"))
        if stop and self._count[stop - 1]:
            return time
        # While nobody is on, what comes next can only be an opening.
        return float(self._times[stop]) if stop < len(self._times) else math.inf

    def _next_on(self, place: int, time: float) -> float:
        window = slice(self._first[place], self._first[place + 1])
        opens, closes = self._opens[window], self._closes[window]
        opened = int(np.searchsorted(opens, time, side="right"))
        if opened and time < closes[opened - 1]:
            return time
        return float(opens[opened]) if opened < len(opens) else math.inf

    def _after(self, before: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Who is on after the changes from start to stop; where a device has several, the last one is left."""
        state = before.copy()
        state[self._owners[start:stop]] = self._turns_on[start:stop]
        return state


def read_trace(path: str | Path, devices: Sequence[str]) -> Trace:
    """The trace in a file, for these devices."""
    index = {device: place for place, device in enumerate(devices)}
    rows = []
    for line, row in _rows(path):
        place = f"trace '{path}' line {line}"
        if row["device"] not in index:
            known = nearest(row["device"], devices) if 0 < len(devices) <= _MANY else _example(devices)
            raise InputError(f"{place}: unknown device '{row['device']}'; {known}")
        on, off = _seconds(row["on"]), _seconds(row["off"]) if row["off"] else math.inf
        if not 0 <= on < math.inf:
            raise InputError(f"{place}: on is '{row['on']}' and must be a number of seconds of at least 0")
        if not off > on:
            raise InputError(
                f"{place}: off is '{row['off']}' and must be a number of seconds above on ({row['on']}), "
                "or empty for a device that stays on"
            )
        rows.append((index[row["device"]], on, off, line))
    if not rows:
        raise InputError(
            f"trace '{path}' has no windows; give at least one row after the header, such as 'NAME,0,3600'"
        )
    table = np.array(rows, dtype=np.float64)  # whole numbers below 2**53 stay as they are
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    return Trace(index, *_merged(path, table, devices))


def _merged(path: str | Path, table: np.ndarray, devices: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Owners, openings and endings, with windows that touch made one."""
    owners, opens, closes, lines = table.T
    same = owners[1:] == owners[:-1]
    overlaps = np.flatnonzero(same & (opens[1:] < closes[:-1]))
    if len(overlaps):
        first, second = sorted(int(line) for line in lines[overlaps[0] : overlaps[0] + 2])
        windows = " and ".join(f"{opens[row]:.15g}-{closes[row]:.15g}" for row in (overlaps[0], overlaps[0] + 1))
        raise InputError(
            f"trace '{path}' lines {first} and {second}: the windows {windows} of device "
            f"'{devices[int(owners[overlaps[0]])]}' overlap; a window must open at or after the end of the one before"
        )
    apart = ~(same & (opens[1:] == closes[:-1]))
    begins, ends = np.append(True, apart), np.append(apart, True)
    return owners[begins].astype(np.int64), opens[begins], closes[ends]


def _rows(path: str | Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Line numbers and the three values of every row; blank lines are passed over."""
    try:
        with Path(expanduser(path)).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            missing = [name for name in _COLUMNS if name not in header]
            if missing:
                found = f"its first line is '{','.join(header)}'" if header else "it is empty"
                raise InputError(
                    f"trace '{path}': no column '{missing[0]}'; {found} and must name the columns 'device,on,off'"
                )
            places = {name: header.index(name) for name in _COLUMNS}
            for row in reader:
                if row and len(row) != len(header):
                    raise InputError(
                        f"trace '{path}' line {reader.line_num}: '{','.join(row)}' has {len(row)} values and must have "
                        f"{len(header)}, as the first line has"
                    )
                if row:
                    yield reader.line_num, {name: row[place].strip() for name, place in places.items()}
    except FileNotFoundError:
        raise InputError(f"trace '{path}': there is no such file; give the path of a CSV file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"trace '{path}' cannot be read as a CSV file in UTF-8: {error}") from None


def _example(devices: Sequence[str]) -> str:
    return f"the {len(devices)} devices have names such as '{devices[0]}'" if devices else "there are no devices"


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
