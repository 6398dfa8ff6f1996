"""Method: a client, a server, and the models to evaluate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from undergrowth.core.client import Client
from undergrowth.core.model import Model
from undergrowth.core.names import MODEL
from undergrowth.core.packet import Weights
from undergrowth.core.pytree import State
from undergrowth.core.server import InnerServer, Server
from undergrowth.core.task import Task


class ModelWeights(NamedTuple):
    """Weights with the model that they belong to, if that is not the run's model."""

    model: Model
    weights: Weights


# A pooled run has one device, of a common kind, below one server.
_IGNORED_IF_POOLED = frozenset({"fleet.name", "topology", "train.over_select", "train.quorum", "train.sample"})


class Method:
    """A federated learning method. Options are dataclass fields; `client` and `server` are built from them.

    class FedAvg(Method):
        client = GradientClient()
        server = AveragingServer()
    """

    pooled: ClassVar[bool] = False  # True: one device holds the samples of all (the centralised bound)
    needs_public: ClassVar[bool] = False  # True: the server must hold data

    if TYPE_CHECKING:  # only declared: a method defines these as class attributes, fields or properties

        @property
        def client(self) -> Client:
            raise NotImplementedError

        @property
        def server(self) -> Server:
            raise NotImplementedError

    @property
    def ignored_settings(self) -> frozenset[str]:
        """Settings of an experiment that this method does not use: those of its server and of its client."""
        of_client: frozenset[str] = getattr(self.client, "ignored_settings", frozenset())
        return self.server.ignored_settings | of_client | (_IGNORED_IF_POOLED if self.pooled else frozenset())

    def check(self) -> None:
        """Raise an InputError if options contradict each other. The limits of each option were checked before."""

    def server_at(self, depth: int) -> Server:
        """The server of the nodes `depth` links below the root."""
        return self.server if depth == 0 else InnerServer(self.server)

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights | ModelWeights]:
        """The models to evaluate, by name, from the root's state and the devices' own states.

        The run's accuracy is that of "global", or the mean over all models if none has that name. Models whose names
        have the same first part, as "devices/a" and "devices/b", are reported as one mean. "devices/NAME" is also
        the model that the device NAME would use. Return an `Each` for one model per device: they are then loaded one
        at a time.
        """
        return {"global": state[MODEL]}

    def personal(self, task: Task, state: State, own: State) -> Weights | ModelWeights:
        """The model that one device would use, given its own state."""
        weights: Weights = state[MODEL]
        return weights
