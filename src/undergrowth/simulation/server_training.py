"""Servers that train on data of their own, beside their children or after they have combined uploads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from undergrowth.core import Node, RoundEnd, State
from undergrowth.exchange import Entry, Ledger
from undergrowth.simulation.own_training import OWN_TRAINING
from undergrowth.simulation.pending import Pending

TRAINED = "trained"  # the event at the end of a training


class TrainingCost(NamedTuple):
    """What the training of a server costs in one of its rounds. `beside`: as in `ServerTraining`."""

    seconds: float
    flops: float
    joules: float
    beside: bool


@dataclass
class TrainingServers:
    """Which servers train, and until when. Each training is an entry of the ledger, of the server with itself."""

    nodes: Mapping[str, Node]
    costs: Mapping[str, TrainingCost]  # node → of its server
    pending: Pending
    since: dict[str, float] = field(default_factory=dict)  # node that trains → when it began
    rounds: dict[str, int] = field(default_factory=dict)  # node → the round in which it trained beside its children

    def __post_init__(self) -> None:
        for name, cost in self.costs.items():
            self.nodes[name].pauses = not cost.beside

    def pausing(self, name: str) -> bool:
        """Whether a node asks and answers nobody now, because its server trains."""
        return self.nodes[name].pauses and name in self.since

    def update(self, node: Node) -> None:
        """Tells a node whether its server still trains beside its children."""
        node.training = not node.pauses and node.name in self.since

    def begin_beside(self, node: Node, now: float) -> None:
        """Begins the training of a round in which a node now asks its children, unless it has begun before."""
        cost = self.costs.get(node.name)
        if cost is not None and cost.beside and self.rounds.get(node.name) != node.round:
            self.rounds[node.name] = node.round
            self._begin(node.name, now)

    def begin_after(self, node: Node, end: RoundEnd, now: float) -> float:
        """Begins the training after a round; returns its seconds. Without arrivals there is nothing to train."""
        cost = self.costs.get(node.name)
        if cost is None or cost.beside:
            return 0.0
        if end.abandoned:
            self.pending.push(now, TRAINED, node.name, None)
            return 0.0
        self._begin(node.name, now)
        return cost.seconds

    def _begin(self, name: str, now: float) -> None:
        self.since[name] = now
        self.pending.push(now + self.costs[name].seconds, TRAINED, name, None)

    def finish(self, name: str, now: float, root_round: int, ledger: Ledger) -> None:
        """Ends the training of a node if it is over now, and not that of an earlier one, which was given up."""
        if name in self.since and self.since[name] + self.costs[name].seconds == now:
            self.end(name, now, root_round, ledger)

    def end(self, name: str, now: float, root_round: int, ledger: Ledger) -> None:
        """Books the training of a node, if it trains, up to now: it is over or given up."""
        if name not in self.since:
            return
        start, cost = self.since.pop(name), self.costs[name]
        done = 1.0 if now >= start + cost.seconds else (now - start) / cost.seconds
        # Without memory: the peak in a ledger is that of devices.
        ledger.book(
            Entry(
                root_round, name, name, OWN_TRAINING, start=start, seconds_compute=done * cost.seconds,
                flops=done * cost.flops, joules=done * cost.joules,
            )
        )  # fmt: skip

    def snapshot(self) -> State:
        """Everything that changes; nothing if no server trains."""
        return {"training": {"since": dict(self.since), "rounds": dict(self.rounds)}} if self.costs else {}

    def restore(self, snapshot: State) -> None:
        kept = snapshot.get("training", {"since": {}, "rounds": {}})
        self.since, self.rounds = dict(kept["since"]), dict(kept["rounds"])
