"""Method: a client, a server, and what is evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from undergrowth.core.client import Client
from undergrowth.core.packet import Weights
from undergrowth.core.server import Inner, Server
from undergrowth.core.task import Task
from undergrowth.core.tree import State


class Method:
    """A way of learning together. Options are fields; `client` and `server` are made from them.

    class FedAvg(Method):
        client = GradientClient()
        server = Averaging()
    """

    client: Client
    server: Server
    pooled: ClassVar[bool] = False  # True: all samples lie in one place (the centralised bound)

    def check(self) -> None:
        """Refuses options that do not go together, with an InputError; single limits are checked before."""

    def server_at(self, depth: int) -> Server:
        """The server of the nodes `depth` links below the root."""
        return self.server if depth == 0 else Inner(self.server)

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights]:
        """What is evaluated, by name, from the root's state and the devices' own states.

        The run's accuracy is that of "global", or the mean over all where there is no such model.
        """
        return {"global": state["model"]}

    def personal(self, task: Task, state: State, own: State) -> Weights:
        """The model that one device would use, given its own state."""
        weights: Weights = state["model"]
        return weights
