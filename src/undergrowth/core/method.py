"""Method: a client, a server, and what is evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from undergrowth.core.client import Client
from undergrowth.core.model import Model
from undergrowth.core.packet import Weights
from undergrowth.core.pytree import State
from undergrowth.core.server import Inner, Server
from undergrowth.core.task import Task


class Fitted(NamedTuple):
    """Weights together with the model that they are of, where that is not the run's."""

    model: Model
    weights: Weights


class Method:
    """A way of learning together. Options are fields; `client` and `server` are made from them.

    class FedAvg(Method):
        client = GradientClient()
        server = Averaging()
    """

    client: Client
    server: Server
    pooled: ClassVar[bool] = False  # True: all samples lie in one place (the centralised bound)
    needs_public: ClassVar[bool] = False  # True: it cannot do without data that the server holds

    def check(self) -> None:
        """Refuses options that do not go together, with an InputError; single limits are checked before."""

    def server_at(self, depth: int) -> Server:
        """The server of the nodes `depth` links below the root."""
        return self.server if depth == 0 else Inner(self.server)

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights | Fitted]:
        """What is evaluated, by name, from the root's state and the devices' own states.

        The run's accuracy is that of "global", or the mean over all where there is no such model. Names with the same
        first part, as in "devices/a" and "devices/b", are one figure: their mean. What is called "devices/NAME" is
        also the model that the device NAME would use. Where there is one for every device, return an `Each`: not all of
        them may fit into memory.
        """
        return {"global": state["model"]}

    def personal(self, task: Task, state: State, own: State) -> Weights | Fitted:
        """The model that one device would use, given its own state."""
        weights: Weights = state["model"]
        return weights
