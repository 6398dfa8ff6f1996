"""What each device did in a run: outcome counts for the whole run, and single asks of the first rounds.

The store of a long run has millions of entries, so only as many are read one by one as a timeline can show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from undergrowth.exchange import Entry
from undergrowth.runs import Store

_MIN_ROUNDS = 12  # in a run without common rounds: asks per device
_ENOUGH_ENTRIES = 600  # fill a timeline
_MAX_ENTRIES = 100_000  # the round in which this number is reached is read to its end


@dataclass(frozen=True)
class DeviceActivity:
    """Exchanges with devices, without those between servers."""

    counts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # device → asked, arrived, late, …
    entries: tuple[Entry, ...] = ()  # of the first rounds
    last_round: int = 0  # the last round that `entries` covers completely


def load_activity(store: Store, run: str) -> DeviceActivity:
    """What the devices did in a run of the store."""
    servers = store.servers(run)
    counts = {child: row for child, row in store.costs_by_device(run).items() if child not in servers}
    return DeviceActivity(counts, *_first_rounds(entry for entry in store.links(run) if entry.child in counts))


def _first_rounds(entries: Iterable[Entry]) -> tuple[tuple[Entry, ...], int]:
    kept: list[Entry] = []
    devices: set[str] = set()
    for rounds, (_, group) in enumerate(groupby(entries, key=lambda entry: entry.round), 1):
        members = list(group)
        kept += members
        devices.update(entry.child for entry in members)
        enough_rounds = rounds >= _MIN_ROUNDS and len(kept) >= _ENOUGH_ENTRIES
        if enough_rounds or len(kept) >= _MIN_ROUNDS * len(devices) or len(kept) >= _MAX_ENTRIES:
            break
    return tuple(kept), kept[-1].round if kept else 0
