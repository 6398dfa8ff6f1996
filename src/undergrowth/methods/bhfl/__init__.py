"""B-HFL (Iacob, Cambridge report 2023, ch. 3): a tree in which every server and every device keeps its own model.

A node that is asked merges its parent's model into its own with `down` and the rate eta_down. Then, as often as
rounds_per_level says, it sends its model to its children, merges theirs with `up` and the rate eta_up, and trains on
proxy data, if it has any; it keeps its model and answers with it. A device merges, and trains as the method `leaf`
does. A node or device without a model takes its parent's. With down average, eta_down 1 and no residuals it is
HierFAVG; in a star it is then FedAvg. A rate of 0 leaves the model as it was. What a device uses, in `result.clients`,
is its model; with the leaf apfl the mixture of its model and of v_k.

up, down: average: w ← w + eta·(m − w), m the received model or mean. momentum:BETA, fedadam, fedyogi, fedadagrad: the
server optimisers of these names on m − w. moving-average:MODELS: the mean of the last models that average gave.
interpolation:RATE: w ← w + eta·α·(m − w), with α tuned by gradient descent on proxy data, at a device on its samples.
distance:FACTOR: average, where a residual counts FACTOR times as much for each link more that it came over.
residuals: norm:K, loss:K, cosine:K: each node sends the root K models of its devices: those with the largest change,
the highest loss, or the change least similar to the mean; with :mean their mean. residuals_down: the root's model goes
to nodes or devices two links and more below. Residuals have the weight residual_weight in a merge, the others the rest,
and their own accumulators. They travel from node to node and cost bytes on every link.
proxy: before: the root trains on the run's public data after it has merged, before it asks its children again.
beside: it trains while its children do, and its model counts as one of theirs. A topology file gives nodes their data.
This training takes time if fleet.server_device names a device.
With a lossy uplink and eta_down below 1 set links.feedback: false: what a codec left out is still in the model that a
device keeps, and error feedback would send it twice.
Options with a value by level are lists: for up, eta_up and execution the first value is the root's, for the others that
of the nodes one link below; the last value holds for all further levels and, for down and eta_down, for the devices.

    >>> import undergrowth as ug
    >>> result = ug.run(method="bhfl", options={"residuals": "norm:1"}, topology="tree:4x5", rounds=2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

from undergrowth.core import (
    InputError,
    Method,
    ModelWeights,
    NodePlace,
    Server,
    State,
    Task,
    Weights,
    check_options,
    model_in,
    option,
    suggest,
)
from undergrowth.core.names import MODEL
from undergrowth.learning import AveragingServer, GradientClient, Staleness
from undergrowth.learning.node_models import at_level, check_levels
from undergrowth.methods.bhfl.client import LeafClient
from undergrowth.methods.bhfl.node_optimiser import NodeOptimiser
from undergrowth.methods.bhfl.residuals import ResidualSelector
from undergrowth.methods.bhfl.server import NodeServer

EXECUTIONS = ("synchronous", "asynchronous")


@dataclass(frozen=True)
class BHFL(Method):
    leaf: str | dict[str, Any] = option("fedavg", "method whose training devices do; {name: fedprox, mu: 0.1}")
    up: str | tuple[str, ...] = option("average", "how a node merges its children, by level")
    down: str | tuple[str, ...] = option("average", "how a node or device merges its parent, by level")
    eta_up: float | tuple[float, ...] = option(1.0, "rate of `up`, by level", at_least=0)
    eta_down: float | tuple[float, ...] = option(0.5, "rate of `down`, by level", at_least=0)
    rounds_per_level: int | tuple[int, ...] = option(1, "rounds of a node for one of its parent, by level", at_least=1)
    residuals: str = option("none", "models of devices for the root: norm:K, loss:K or cosine:K, also with :mean")
    residuals_down: str = option(
        "none", "receivers of the root's model as a residual", choices=("none", "nodes", "devices", "all")
    )
    residual_weight: float = option(0.5, "weight of the residuals in a merge", at_least=0, at_most=1)
    proxy: str = option("none", "training on proxy data", choices=("none", "before", "beside"))
    proxy_epochs: int = option(1, "epochs of training on proxy data in a round", at_least=1)
    execution: str | tuple[str, ...] = option("synchronous", "synchronous or asynchronous children, by level")
    buffer: int = option(1, "answers that end a round of an asynchronous node", at_least=1)
    staleness: str = option(
        "polynomial:0.5", "weight of an answer by its age, at an asynchronous node: constant, polynomial:A or hinge:A:B"
    )

    node_settings: ClassVar[frozenset[str]] = frozenset({"rounds", "asynchronous", "proxy"})
    keeps_model: ClassVar[bool] = True
    may_use_public: ClassVar[bool] = True  # as proxy data

    def check(self) -> None:
        check_levels(
            up=self.up,
            down=self.down,
            eta_up=self.eta_up,
            eta_down=self.eta_down,
            rounds_per_level=self.rounds_per_level,
            execution=self.execution,
        )
        for name, texts in (("up", self.up), ("down", self.down)):
            for text in texts if isinstance(texts, tuple) else (texts,):
                NodeOptimiser(text, 1.0, 0.0).check(name)
        for text in self.execution if isinstance(self.execution, tuple) else (self.execution,):
            if text not in EXECUTIONS:
                raise InputError(f"method.execution '{text}' is not known; {suggest(text, EXECUTIONS)}")
        Staleness(self.staleness)
        self.selector.check()
        self._leaf  # noqa: B018  (raises an InputError for a leaf that cannot be used)

    @property
    def client(self) -> LeafClient:
        client = self._leaf.client
        assert isinstance(client, GradientClient)
        return LeafClient(self, client)

    @property
    def server(self) -> NodeServer:
        return NodeServer(self)

    def server_at(self, depth: int) -> Server:
        return self.server_for(NodePlace(depth))

    def server_for(self, place: NodePlace) -> Server:
        upward, downward = self.optimiser_up(place.depth), self.optimiser_down(place.depth)
        needs = upward.needs_data or (place.depth > 0 and downward.needs_data)
        if needs and not self.has_proxy_data(place):
            raise InputError(
                f"method: interpolation is tuned on proxy data, and a node at depth {place.depth} has none; "
                "give it some in a topology file, or write another optimiser for that level"
            )
        return NodeServer(self, place)

    def rounds_at(self, depth: int) -> int:
        return at_level(self.rounds_per_level, depth - 1)

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights]:
        return {"global": model_in(state)}

    def node_model(self, task: Task, state: State) -> Weights | None:
        return state.get(MODEL)

    def personal(self, task: Task, state: State, own: State, device: str) -> Weights | ModelWeights:
        model = own.get(MODEL) or model_in(state)
        return self._leaf.personal(task, {MODEL: model}, own.get("leaf", {}), device)

    # What the nodes and devices read ---------------------------------------------------------------------------

    @cached_property
    def selector(self) -> ResidualSelector:
        return ResidualSelector(self.residuals)

    def optimiser_up(self, depth: int) -> NodeOptimiser:
        """The optimiser that a node `depth` links below the root merges its children with."""
        return NodeOptimiser(at_level(self.up, depth), at_level(self.eta_up, depth), self.residual_weight)

    def optimiser_down(self, depth: int) -> NodeOptimiser:
        """The optimiser that a node `depth` links below the root merges its parent with."""
        text, rate = at_level(self.down, depth - 1), at_level(self.eta_down, depth - 1)
        return NodeOptimiser(text, rate, self.residual_weight, downward=True)

    @cached_property
    def leaf_optimiser(self) -> NodeOptimiser:
        """The optimiser that devices merge their parent with: that of the last level."""
        return self.optimiser_down(1 + max(_length(self.down), _length(self.eta_down)))

    def is_asynchronous(self, place: NodePlace) -> bool:
        """Whether a node goes on without waiting for all its children."""
        if place.asynchronous is not None:
            return place.asynchronous
        return at_level(self.execution, place.depth) == "asynchronous"

    def has_proxy_data(self, place: NodePlace) -> bool:
        """Whether a node has proxy data: those that a topology file gives some; without a file, the root."""
        used = self.proxy != "none" or self.optimiser_up(place.depth).needs_data
        used = used or (place.depth > 0 and self.optimiser_down(place.depth).needs_data)
        return used and (place.depth == 0 if place.proxy is None else place.proxy)

    @cached_property
    def _leaf(self) -> Method:
        from undergrowth.methods import METHODS  # which has this method in it

        given = {"name": self.leaf} if isinstance(self.leaf, str) else dict(self.leaf)
        name = str(given.pop("name", "fedavg"))
        if name not in METHODS:
            raise InputError(f"method.leaf '{name}' is not known; {suggest(name, METHODS)}")
        if name == "bhfl":
            raise InputError("method.leaf 'bhfl': a leaf is a device; write what it does, such as fedavg or fedprox")
        known = [each.name for each in fields(METHODS[name])]  # type: ignore[arg-type]
        for key in given:
            if key not in known:
                raise InputError(f"method.leaf.{key} is not an option of {name}; {suggest(key, known)}")
        leaf = METHODS[name](**given)
        check_options(leaf, "method.leaf")
        leaf.check()
        # Such a server sends its model and takes the mean of those that come back. Nodes do the same: what another one
        # does, as weighing by losses, would be left out, and so would a model's adapters or another first round.
        server = leaf.server
        plain = isinstance(server, AveragingServer) and server == AveragingServer(
            accepts_partial=server.accepts_partial
        )
        if not plain or not isinstance(leaf.client, GradientClient) or leaf.model_settings or leaf.begins_with:
            raise InputError(
                f"method.leaf '{name}': its devices exchange something else than models, or its server does something "
                "else with them than to take their mean by samples; write fedavg, fedprox, moon or another method "
                "whose devices receive a model and send one, without options about stragglers or the server"
            )
        return leaf


def _length(values: object) -> int:
    return len(values) if isinstance(values, tuple) else 1
