"""HierFAVG (Liu et al. 2020): edge servers average their devices' models several times before they answer.

Down: w. A node below the root replaces its model by its parent's, does T rounds of FedAvg with its children, and sends
up its model with the samples behind its last round. The root averages the models of its children.
rounds_per_level has T for the nodes one link below the root, two links below it, and so on; the last number holds for
all further levels. With T = 1 it is FedAvg in a tree; in a star there is no node below the root, and it is FedAvg.

    >>> import undergrowth as ug
    >>> result = ug.run(method="hierfavg", options={"rounds_per_level": 3}, topology="tree:4x5", rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from undergrowth.core import Method, Server, State, Task, Weights, option
from undergrowth.core.names import MODEL
from undergrowth.learning import GradientClient
from undergrowth.learning.node_models import ModelServer, at_level, check_levels


@dataclass(frozen=True)
class HierFAVG(Method):
    rounds_per_level: int | tuple[int, ...] = option(2, "rounds of a node for one of its parent, by level", at_least=1)

    client = GradientClient()
    server = ModelServer()
    node_settings: ClassVar[frozenset[str]] = frozenset({"rounds"})

    def check(self) -> None:
        check_levels(rounds_per_level=self.rounds_per_level)

    def server_at(self, depth: int) -> Server:
        return self.server

    def rounds_at(self, depth: int) -> int:
        return at_level(self.rounds_per_level, depth - 1)

    def node_model(self, task: Task, state: State) -> Weights | None:
        return state.get(MODEL)
