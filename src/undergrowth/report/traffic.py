"""Who worked when: what a report reads from the exchanges of a run, however many there are.

Counts are of the whole run. Exchanges one by one are only of the beginning, as much as can be drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from undergrowth.exchange import Entry
from undergrowth.runs import Store

_ROUNDS = 12  # or exchanges of each device, in a run without common rounds
_ENOUGH = 600  # exchanges that fill a picture
_MOST = 100_000  # exchanges that are read, or the rest of the round that this is reached in


@dataclass(frozen=True)
class Traffic:
    """Exchanges with devices; those between servers are left out."""

    counts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # device → asked, rounds, late, lost, refused
    beginning: tuple[Entry, ...] = ()
    last_round: int = 0  # the last one that the beginning has, whole


def traffic(store: Store, run: str) -> Traffic:
    counts = store.costs_by_device(run)
    servers = store.servers(run)
    devices = {child: row for child, row in counts.items() if child not in servers}
    return Traffic(devices, *_beginning(entry for entry in store.links(run) if entry.child in devices))


def _beginning(entries: Iterable[Entry]) -> tuple[tuple[Entry, ...], int]:
    kept: list[Entry] = []
    seen: set[str] = set()
    for rounds, (_, group) in enumerate(groupby(entries, key=lambda entry: entry.round), 1):
        members = list(group)
        kept += members
        seen.update(entry.child for entry in members)
        together = rounds >= _ROUNDS and len(kept) >= _ENOUGH
        if together or len(kept) >= _ROUNDS * len(seen) or len(kept) >= _MOST:
            break
    return tuple(kept), kept[-1].round if kept else 0
