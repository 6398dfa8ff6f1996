"""The bounds that tables compare with: every device alone, and all data in one place.

local: a device trains a model of its own from common initial weights. Down: the seed of these weights. Up: only the
number of samples. The run's accuracy is the mean over the devices' models. central: the same for one device that holds
the samples of all. A device keeps its weights from round to round, but not the momentum or the moments of Adam: these
start at 0 in every round, as by FedAvg.

    >>> import undergrowth as ug
    >>> result = ug.run(method="local", rounds=2)
    >>> result = ug.run(method="central", rounds=2)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from undergrowth.core import Carry, Context, LazyMapping, Method, Packet, Plan, Server, State, Sum, Task, View, Weights
from undergrowth.core.client import Loop
from undergrowth.core.names import MODEL, PROBLEM, SEED
from undergrowth.learning import GradientClient, Trained
from undergrowth.learning.kept_model import check_models, problem_tags


@dataclass(frozen=True)
class LocalClient(GradientClient):
    """Continues to train its own model; the seed in the packet gives its initial weights."""

    @property
    def ignored_settings(self) -> frozenset[str]:
        return super().ignored_settings | {"links.down", "links.feedback", "links.up"}  # codecs are for tensors

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        return own.get(MODEL) or task.model.initial(int(down.scalars[SEED]))

    def after_steps(self, task: Task, loops: Sequence[Loop]) -> list[Carry]:
        return check_models(loops)

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        return Packet(scalars=trained.scalars, tags=problem_tags(trained)), {MODEL: dict(trained.tensors)}


@dataclass(frozen=True)
class SeedServer(Server):
    """Sends the seed of the initial weights in every round, and learns nothing."""

    reducer = Sum()

    def init(self, task: Task, context: Context) -> State:
        return {SEED: context.key("model")}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        return {SEED: down.scalars[SEED]}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        return self.ask(task, view, context, Packet(scalars={SEED: state[SEED]}))

    def check(self, task: Task, up: Packet) -> str | None:
        return up.tags.get(PROBLEM)

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        return state


@dataclass(frozen=True)
class Bound(Method):
    """The base of both methods: the models are the devices' own."""

    client = LocalClient()
    server = SeedServer()
    keeps_model: ClassVar[bool] = True

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights]:
        trained = LazyMapping(own, lambda device: own[device][MODEL])
        return trained or {"start": task.model.initial(int(state[SEED]))}

    def personal(self, task: Task, state: State, own: State, device: str) -> Weights:
        return own[MODEL] if own else task.model.initial(int(state[SEED]))


@dataclass(frozen=True)
class Local(Bound):
    """Every device alone: what a device gets without taking part."""


@dataclass(frozen=True)
class Central(Bound):
    """All samples in one place: the accuracy that a federation gives up."""

    pooled: ClassVar[bool] = True
