"""The ledger: what taking part cost, by round, link and device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Entry(NamedTuple):  # a tuple, because a simulation makes millions of them
    """One ask over one link: bytes down, the child's work, bytes up.

    A child that is a node has bytes only; the work is in the entries of its own children.
    """

    round: int  # the root's round in which the ask ended, counted from 1
    parent: str
    child: str
    outcome: str  # arrived | refused | lost | late
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

    def add(self, entry: Entry) -> None:
        self.bytes_down += entry.bytes_down
        self.bytes_up += entry.bytes_up
        self.flops += entry.flops
        self.joules += entry.joules
        self.compute_seconds += entry.seconds_compute
        self.peak_device_bytes = max(self.peak_device_bytes, entry.memory)


@dataclass
class Ledger:
    """Entries since the last `take` (one round's worth), and totals since the start.

    Entries go to the store after every round, so memory does not grow with the rounds.
    """

    totals: Totals = field(default_factory=Totals)
    entries: list[Entry] = field(default_factory=list)

    def book(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.totals.add(entry)

    def take(self) -> list[Entry]:
        """The entries since the last call."""
        taken, self.entries = self.entries, []
        return taken
