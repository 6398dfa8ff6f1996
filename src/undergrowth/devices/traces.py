"""Traces: recorded availability, read from a CSV file with one row per window.

The columns are `device`, `on` and `off`, in seconds; other columns are ignored. `off` may be empty or `inf` for a
device that stays on. A device may have several rows, in any order. A device without a row is never on.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from os.path import expanduser
from pathlib import Path

import numpy as np

from undergrowth.core import InputError, suggest

_COLUMNS = ("device", "on", "off")
_MAX_NAMES_IN_HINT = 100


class Trace:
    """The windows of every device, sorted by device and time, without overlaps.

    All starts and ends of windows are events in one list, sorted by time. The state of all devices is stored once
    every `len(devices)` events, so that no query costs more than one pass over the devices, however long the trace is.
    """

    def __init__(self, index: Mapping[str, int], owners: np.ndarray, opens: np.ndarray, closes: np.ndarray) -> None:
        self._index = index
        self._opens, self._closes = opens, closes
        self._first_window = np.searchsorted(owners, np.arange(len(index) + 1))

        ends = closes < math.inf
        times = np.concatenate([opens, closes[ends]])
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        self._owners = np.concatenate([owners, owners[ends]])[order]
        self._turns_on = order < len(opens)
        self._stride = max(1, len(index))
        self._snapshots = np.zeros((len(times) // self._stride + 1, len(index)), dtype=np.bool_)
        for number in range(1, len(self._snapshots)):
            stop = number * self._stride
            self._snapshots[number] = self._apply_events(self._snapshots[number - 1], stop - self._stride, stop)

    def on(self, time: float) -> np.ndarray:
        stop = int(np.searchsorted(self._times, time, side="right"))
        snapshot = stop // self._stride
        return self._apply_events(self._snapshots[snapshot], snapshot * self._stride, stop)

    def until(self, device: str, time: float) -> float:
        opens, closes = self._windows(device)
        opened = int(np.searchsorted(opens, time, side="right"))
        # Of the windows that have opened, only the last can still be open.
        return max(time, float(closes[opened - 1])) if opened else time

    def next_on(self, time: float, devices: Sequence[str]) -> float:
        return min((self._next_on(device, time) for device in devices), default=math.inf)

    def _next_on(self, device: str, time: float) -> float:
        opens, closes = self._windows(device)
        opened = int(np.searchsorted(opens, time, side="right"))
        if opened and time < closes[opened - 1]:
            return time
        return float(opens[opened]) if opened < len(opens) else math.inf

    def _windows(self, device: str) -> tuple[np.ndarray, np.ndarray]:
        position = self._index[device]
        windows = slice(self._first_window[position], self._first_window[position + 1])
        return self._opens[windows], self._closes[windows]

    def _apply_events(self, before: np.ndarray, start: int, stop: int) -> np.ndarray:
        """The state after events `start` to `stop`. If a device has several of them, the last one decides."""
        state = before.copy()
        state[self._owners[start:stop]] = self._turns_on[start:stop]
        return state


def read_trace(path: str | Path, devices: Sequence[str]) -> Trace:
    """The trace of a file, for these devices."""
    index = {device: position for position, device in enumerate(devices)}
    windows = []
    for line, row in _rows(path):
        place = f"trace '{path}' line {line}"
        if row["device"] not in index:
            raise InputError(f"{place}: unknown device '{row['device']}'; {_hint(row['device'], devices)}")
        on, off = _seconds(row["on"]), _seconds(row["off"]) if row["off"] else math.inf
        if not 0 <= on < math.inf:
            raise InputError(f"{place}: on is '{row['on']}' and must be a number of seconds of at least 0")
        if not off > on:
            raise InputError(
                f"{place}: off is '{row['off']}' and must be a number of seconds above on ({row['on']}), "
                "or empty for a device that stays on"
            )
        windows.append((index[row["device"]], on, off, line))
    if not windows:
        raise InputError(
            f"trace '{path}' has no windows; give at least one row after the header, such as 'NAME,0,3600'"
        )
    table = np.array(windows, dtype=np.float64)  # exact for whole numbers below 2**53
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    return Trace(index, *_merge_windows(path, table, devices))


def _merge_windows(
    path: str | Path, table: np.ndarray, devices: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Owners, starts and ends of the windows, after merging adjacent windows. Overlapping windows are refused."""
    owners, opens, closes, lines = table.T
    same_owner = owners[1:] == owners[:-1]
    overlaps = np.flatnonzero(same_owner & (opens[1:] < closes[:-1]))
    if len(overlaps):
        first, second = sorted(int(line) for line in lines[overlaps[0] : overlaps[0] + 2])
        windows = " and ".join(f"{opens[row]:.15g}-{closes[row]:.15g}" for row in (overlaps[0], overlaps[0] + 1))
        raise InputError(
            f"trace '{path}' lines {first} and {second}: the windows {windows} of device "
            f"'{devices[int(owners[overlaps[0]])]}' overlap; a window must open at or after the end of the one before"
        )
    separate = ~(same_owner & (opens[1:] == closes[:-1]))
    starts, ends = np.append(True, separate), np.append(separate, True)
    return owners[starts].astype(np.int64), opens[starts], closes[ends]


def _rows(path: str | Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The line number and the three values of every row; blank lines are skipped."""
    try:
        with Path(expanduser(path)).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            columns = _columns(path, header)
            for row in reader:
                if row and len(row) != len(header):
                    raise InputError(
                        f"trace '{path}' line {reader.line_num}: '{','.join(row)}' has {len(row)} values and must have "
                        f"{len(header)}, as the first line has"
                    )
                if row:
                    yield reader.line_num, {name: row[column].strip() for name, column in columns.items()}
    except FileNotFoundError:
        raise InputError(f"trace '{path}': there is no such file; give the path of a CSV file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"trace '{path}' cannot be read as a CSV file in UTF-8: {error}") from None


def _columns(path: str | Path, header: list[str]) -> dict[str, int]:
    for name in _COLUMNS:
        if name not in header:
            found = f"its first line is '{','.join(header)}'" if header else "it is empty"
            raise InputError(f"trace '{path}': no column '{name}'; {found} and must name the columns 'device,on,off'")
        if header.count(name) > 1:
            raise InputError(f"trace '{path}': its first line has the column '{name}' twice; keep one of them")
    return {name: header.index(name) for name in _COLUMNS}


def _hint(device: str, devices: Sequence[str]) -> str:
    if 0 < len(devices) <= _MAX_NAMES_IN_HINT:
        return suggest(device, devices)
    return f"the {len(devices)} devices have names such as '{devices[0]}'" if devices else "there are no devices"


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
