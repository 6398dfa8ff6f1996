"""Driver: what a run needs of whatever moves packets between nodes and devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from undergrowth.core import Node, RoundEnd, State
from undergrowth.exchange.ledger import Ledger


class Driver(Protocol):
    """Drives a topology of nodes, in simulated time or over a real network.

    Building a driver opens no process, file or socket; `start` does.
    """

    @property
    def root(self) -> Node: ...
    @property
    def ledger(self) -> Ledger: ...

    def start(self) -> None:
        """Opens what the driver needs. Called once, before `rounds`, and before or after `restore`."""
        ...

    def rounds(self) -> Iterator[Sequence[RoundEnd]]:
        """Yields the root's rounds as they end; several at once if they end in the same instant."""
        ...

    def stop(self) -> int:
        """Ends the run after the rounds that were yielded last; returns how many open asks are given up for that."""
        ...

    def facts(self) -> Mapping[str, float]:
        """Figures about the work since the last call, for the round's row in the store; empty if there was none."""
        ...

    @property
    def clients_per_second(self) -> float:
        """Finished jobs of devices per second of wall time."""
        ...

    def snapshot(self) -> State:
        """Everything that changes, as a pytree. Taken between two rounds."""
        ...

    def restore(self, snapshot: State) -> None:
        """Continues from a snapshot."""
        ...

    def close(self) -> None:
        """Releases what `start` opened. May be called twice."""
        ...
