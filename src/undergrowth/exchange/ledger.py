"""The ledger: what taking part cost, by round, link and device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Entry(NamedTuple):  # a tuple, because a simulation makes millions of them
    """One ask over one link: bytes down, the child's work, bytes up.

    A child that is a node has only bytes and the seconds of its link; the work is in the entries of its own children.
    """

    round: int  # the root's round in which the ask ended, counted from 1
    parent: str
    child: str
    outcome: str  # arrived | refused | lost | late; own training: work between rounds that nobody asked for
    reason: str = ""
    bytes_down: int = 0
    bytes_up: int = 0
    flops: float = 0.0
    memory: int = 0
    start: float = 0.0  # seconds since the start of the run
    seconds_down: float = 0.0
    seconds_compute: float = 0.0
    seconds_up: float = 0.0
    joules: float = 0.0

    @property
    def end(self) -> float:
        return self.start + self.seconds_down + self.seconds_compute + self.seconds_up


COLUMNS = Entry._fields


@dataclass
class Totals:
    """Sums over all entries; `peak_device_bytes` is the largest memory that one device needed."""

    bytes_down: int = 0
    bytes_up: int = 0
    flops: float = 0.0
    joules: float = 0.0
    compute_seconds: float = 0.0
    peak_device_bytes: int = 0
    simulated_seconds: float = 0.0

    def add(self, entries: Iterable[Entry]) -> None:
        """Adds entries one by one, so that the sums do not depend on how many are added at a time."""
        down, up, flops, joules = self.bytes_down, self.bytes_up, self.flops, self.joules
        seconds, peak = self.compute_seconds, self.peak_device_bytes
        for entry in entries:
            down += entry.bytes_down
            up += entry.bytes_up
            flops += entry.flops
            joules += entry.joules
            seconds += entry.seconds_compute
            if entry.memory > peak:
                peak = entry.memory
        self.bytes_down, self.bytes_up, self.flops, self.joules = down, up, flops, joules
        self.compute_seconds, self.peak_device_bytes = seconds, peak


class Ledger:
    """Entries since the last `take` (one round's worth), and totals since the start.

    Entries go to the store after every round, so memory does not grow with the rounds.
    """

    def __init__(self, totals: Totals | None = None) -> None:
        self.entries: list[Entry] = []
        self._totals = totals or Totals()
        self._added = 0  # entries that are in the totals

    @property
    def totals(self) -> Totals:
        """Sums over all entries so far. They are added when they are read: that is faster than one at a time."""
        self._totals.add(self.entries[self._added :])
        self._added = len(self.entries)
        return self._totals

    def book(self, entry: Entry) -> None:
        self.entries.append(entry)

    def take(self) -> list[Entry]:
        """The entries since the last call."""
        self._totals.add(self.entries[self._added :])
        taken, self.entries, self._added = self.entries, [], 0
        return taken
