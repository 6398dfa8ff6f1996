"""Method: a client, a server, and the models to evaluate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import getattr_static, signature
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from undergrowth.core.client import Client
from undergrowth.core.errors import InputError, explain_errors
from undergrowth.core.model import Model
from undergrowth.core.packet import Weights
from undergrowth.core.pytree import State
from undergrowth.core.server import InnerServer, Server, model_in
from undergrowth.core.task import Task
from undergrowth.core.task_kind import Classification


class ModelWeights(NamedTuple):
    """Weights with the model that they belong to, if that is not the run's model."""

    model: Model
    weights: Weights

    @property
    def complete(self) -> Weights:
        """The weights together with the frozen tensors of the module."""
        return self.model.complete(self.weights)


@dataclass(frozen=True)
class NodePlace:
    """Where a node is in the topology, and what a topology file says about it alone. None: what the method says."""

    depth: int = 0  # links between the node and the root
    rounds: int | None = None  # for one ask of the parent
    asynchronous: bool | None = None  # whether it goes on without waiting for all its children
    proxy: bool | None = None  # whether it has proxy data, in its `task.public`


# A pooled run has one device, of a common kind, below one server.
_IGNORED_IF_POOLED = frozenset({
    "fleet.name", "fleet.node_deadlines", "fleet.server_device", "fleet.server_link", "topology",
    "train.over_select", "train.quorum", "train.sample",
})  # fmt: skip


class Method:
    """A federated learning method. Options are dataclass fields; `client` and `server` are built from them.

    class FedAvg(Method):
        client = GradientClient()
        server = AveragingServer()
    """

    pooled: ClassVar[bool] = False  # True: one device holds the samples of all (the centralised bound)
    needs_public: ClassVar[bool] = False  # True: the server must hold data
    may_use_public: ClassVar[bool] = False  # True: the server trains on data if it holds any
    needs_all_classes: ClassVar[bool] = False  # True: the run warns of classes that no device holds
    keeps_model: ClassVar[bool] = False  # True: `model` of a device's own state is the model that it uses
    one_model_part: ClassVar[bool] = False  # True: an upload is one model, as a part whose name may change
    begins_with: ClassVar[str] = ""  # a method whose rounds come first, as with `start.method`; empty: none
    # The fields of `NodePlace` that a topology file may set for single nodes.
    node_settings: ClassVar[frozenset[str]] = frozenset()

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

    @property
    def model_settings(self) -> Mapping[str, Any]:
        """Settings of the section `model` that the method needs, by key, such as adapters."""
        return {}

    @property
    def needs_classes(self) -> str:
        """Why the method works with classification only, as "it draws samples of every class"; "" if it does not."""
        return ""

    @property
    def group_field(self) -> str:
        """The field of the data set whose values are the groups of devices in `task.groups`; "" if it needs none."""
        return ""

    def check(self) -> None:
        """Raise an InputError if options contradict each other. The limits of each option were checked before."""

    def check_devices(self, devices: Collection[str]) -> None:
        """Raise an InputError if an option names a device that is not among those of the run."""

    def server_at(self, depth: int) -> Server:
        """The server of the nodes `depth` links below the root."""
        return self.server if depth == 0 else InnerServer(self.server)

    def server_for(self, place: NodePlace) -> Server:
        """The server of one node. By default all nodes of a level have the same."""
        return self.server_at(place.depth)

    def rounds_at(self, depth: int) -> int:
        """The rounds that a node `depth` links below the root does for one ask of its parent."""
        return 1

    def has_proxy_data(self, place: NodePlace) -> bool:
        """Whether a node trains on data of its own, which is in its `task.public`."""
        return False

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights | ModelWeights]:
        """The models to evaluate, by name, from the root's state and the devices' own states.

        The run's accuracy is that of "global", or the mean over all models if none has that name. The history has the
        accuracies of the others, too. Models whose names have the same first part, as "devices/a" and "devices/b", are
        reported as one mean. "devices/NAME" is also the model that the device NAME would use. Return a `LazyMapping`
        for one model per device: they are then loaded one at a time.
        """
        return {"global": model_in(state)}

    def ensemble(self, task: Task, state: State) -> Mapping[str, Weights | ModelWeights]:
        """The models of groups, by the names in `task.groups`: each predicts the test samples of its own group.

        The history has the accuracy of all of them together as "ensemble".
        """
        return {}

    def node_model(self, task: Task, state: State) -> Weights | None:
        """The model of a node below the root, from its state; None if such a node has none of its own."""
        return None

    def personal(self, task: Task, state: State, own: State, device: str) -> Weights | ModelWeights:
        """The model that `device` would use, given its own state."""
        return model_in(state)

    def notes(self, task: Task) -> Sequence[str]:
        """What the user should know about this method in this run; the run stores these sentences."""
        return ()


def personal_model(method: Method, task: Task, state: State, own: State, device: str) -> Weights | ModelWeights:
    """`method.personal`. A method written before `device` was a parameter is called without it."""
    arguments: tuple[Any, ...] = (task, state, own, device)
    found: Weights | ModelWeights = method.personal(*arguments[: _count_parameters(type(method).personal)])
    return found


@cache
def _count_parameters(function: Callable[..., Any]) -> int:
    return len(signature(function).parameters) - 1  # without `self`


def check_parts(method: Method) -> None:
    """Raise an InputError if the method lacks a client or a server, or if these lack a function."""
    name, client, server = type(method).__name__, _part(method, "client"), _part(method, "server")
    if not isinstance(client, Client) or isinstance(client, type):
        raise InputError(f"method {name}: {_lacks('client', client)} a function `local`, such as `GradientClient()`")
    if not isinstance(server, Server):
        raise InputError(f"method {name}: {_lacks('server', server)} the base `Server`, such as `AveragingServer()`")
    kind = type(server)
    if kind.step is Server.step:
        raise InputError(f"method {name}: {kind.__name__} has no `step`, which says what it does with the uploads")
    try:
        server.reducer  # noqa: B018
    except NotImplementedError:
        raise InputError(
            f"method {name}: {kind.__name__} has no `reducer`, which says how uploads are combined; "
            "define one, such as `WeightedMean()`"
        ) from None


def check_task(method: Method, name: str, task: Task) -> None:
    """Raise an InputError if the method, or the run's selector, needs classes and the task has none."""
    if isinstance(task.kind, Classification):
        return
    for what, reason in (
        (f"method {name}", method.needs_classes),
        ("train.selector", "it selects samples by their classes" if task.selector.needs_classes else ""),
    ):
        if reason:
            raise InputError(
                f"{what}: {reason}, so it works with the task classification only, and the task is {task.kind.name}"
            )


def check_state(method: Method, state: State) -> None:
    """Raise an InputError if the default `models` would not find a model in the server's state."""
    if type(method).models is Method.models:
        model_in(state)


def _part(method: Method, name: str) -> object:
    """The client or the server of a method; None if it is not defined."""
    if getattr_static(method, name, None) is None:
        return None
    with explain_errors(f"method {type(method).__name__}: its {name} cannot be built"):
        return getattr(method, name)


def _lacks(part: str, found: object) -> str:
    if found is None:
        return f"it has no {part}; define `{part}`, an object with"
    what = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
    return f"its {part} is {what}; it must be an object with"
