"""The ledger: what taking part cost, by round, link and device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add
from typing import NamedTuple


class Entry(NamedTuple):  # a tuple, because a simulation makes millions of them
    """One ask over one link: bytes down, the child's work, bytes up.

    A child that is a node has only bytes and the seconds of its link; the work is in the entries of its own children.
    """

    round: int  # the root's round in which the ask ended, counted from 1
    parent: str
    child: str
    outcome: str  # arrived | refused | lost | late; own training: of a device between rounds, or of a server
    reason: str = ""
    bytes_down: int = 0
    bytes_up: int = 0
    start: float = 0.0  # seconds since the start of the run
    # What the ask took. The simulation has the values in its `Timing`, by these names.
    seconds_down: float = 0.0
    seconds_compute: float = 0.0
    seconds_up: float = 0.0
    flops: float = 0.0
    memory: int = 0
    joules: float = 0.0

    @property
    def end(self) -> float:
        return self.start + self.seconds_down + self.seconds_compute + self.seconds_up


COLUMNS = Entry._fields
TIMED = COLUMNS[COLUMNS.index("start") + 1 :]  # the columns that a `Timing` has


class Cost(NamedTuple):
    """A column of the ledger that has totals. The store, the history, JSON, tables and plans take it from `COSTS`."""

    column: str
    of_device: str  # its name in the facts of a device and in the rows of a plan
    of_run: str  # its name in `Totals`, the history and the summary of a run
    peak: bool = False  # the total is the largest value, not the sum
    of_round: bool = True  # in the rows of rounds, and in tables of plans


COSTS = (
    Cost("bytes_down", "bytes_down", "bytes_down"),
    Cost("bytes_up", "bytes_up", "bytes_up"),
    Cost("flops", "flops", "flops"),
    Cost("joules", "joules", "joules"),
    Cost("seconds_compute", "compute_seconds", "compute_seconds", of_round=False),
    Cost("memory", "memory", "peak_device_bytes", peak=True, of_round=False),
)
ROUND_COSTS = tuple(cost for cost in COSTS if cost.of_round)
ROUND_COST_KEYS = ("simulated_seconds", *(cost.of_run for cost in ROUND_COSTS))  # keys of the rows of rounds


@dataclass
class Totals:
    """Sums over all entries; `peak_device_bytes` is the largest memory that one device needed."""

    bytes_down: int = 0
    bytes_up: int = 0
    flops: float = 0.0
    simulated_seconds: float = 0.0
    joules: float = 0.0
    peak_device_bytes: int = 0
    compute_seconds: float = 0.0

    def add(self, entries: Sequence[Entry]) -> None:
        """Adds entries one by one, so that the sums do not depend on how many are added at a time."""
        if not entries:
            return
        # Written out, not derived from `COSTS`: a simulation adds millions of entries.
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

    def merge(self, other: Totals) -> None:
        """Adds the totals of another run, one after the other in time."""
        for cost in COSTS:
            combine = max if cost.peak else add
            setattr(self, cost.of_run, combine(getattr(self, cost.of_run), getattr(other, cost.of_run)))
        self.simulated_seconds += other.simulated_seconds


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
