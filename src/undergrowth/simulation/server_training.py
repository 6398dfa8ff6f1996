"""Servers that train on data of their own, beside their children or after they have combined uploads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from undergrowth.core import Node, RoundEnd, State
from undergrowth.exchange import Entry, Ledger
from undergrowth.simulation.own_training import OWN_TRAINING
from undergrowth.simulation.pending import Pending


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
    until: dict[str, float] = field(default_factory=dict)  # node → when its training is over
    rounds: dict[str, int] = field(default_factory=dict)  # node → the round in which it trained beside its children

    def __post_init__(self) -> None:
        for name, cost in self.costs.items():
            self.nodes[name].pauses = not cost.beside

    def pausing(self, name: str, now: float) -> bool:
        """Whether a node asks and answers nobody now, because its server trains."""
        return self.nodes[name].pauses and self.until.get(name, now) > now

    def update(self, node: Node, now: float) -> None:
        """Tells a node whether its server still trains beside its children."""
        node.training = not node.pauses and self.until.get(node.name, now) > now

    def begin_beside(self, node: Node, now: float, root_round: int, ledger: Ledger) -> None:
        """Begins the training of a round in which a node now asks its children, unless it has begun before."""
        cost = self.costs.get(node.name)
        if cost is not None and cost.beside and self.rounds.get(node.name) != node.round:
            self.rounds[node.name] = node.round
            self._train(node, cost, now, root_round, ledger)

    def begin_after(self, node: Node, end: RoundEnd, now: float, root_round: int, ledger: Ledger) -> float:
        """Begins the training after a round; returns its seconds. Without arrivals there is nothing to train."""
        cost = self.costs.get(node.name)
        if cost is None or cost.beside:
            return 0.0
        if end.abandoned:
            self.pending.push(now, "trained", node.name, None)
            return 0.0
        self._train(node, cost, now, root_round, ledger)
        return cost.seconds

    def _train(self, node: Node, cost: TrainingCost, now: float, root_round: int, ledger: Ledger) -> None:
        self.until[node.name] = now + cost.seconds
        self.pending.push(now + cost.seconds, "trained", node.name, None)
        # Without memory: the peak in a ledger is that of devices.
        ledger.book(
            Entry(
                root_round, node.name, node.name, OWN_TRAINING, start=now,
                seconds_compute=cost.seconds, flops=cost.flops, joules=cost.joules,
            )
        )  # fmt: skip

    def snapshot(self) -> State:
        """Everything that changes; nothing if no server trains."""
        return {"training": {"until": dict(self.until), "rounds": dict(self.rounds)}} if self.costs else {}

    def restore(self, snapshot: State) -> None:
        kept = snapshot.get("training", {"until": {}, "rounds": {}})
        self.until, self.rounds = dict(kept["until"]), dict(kept["rounds"])
