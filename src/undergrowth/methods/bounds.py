"""The bounds that tables compare with: every device alone, and all data in one place.

local: a device trains a model of its own from the common start. Down: the seed of that start. Up: a receipt. The
run's accuracy is the mean over the devices' models. central: the same on the pooled samples of all devices.

    >>> import undergrowth as ug
    >>> result = ug.run(method="local", rounds=2)
    >>> result = ug.run(method="central", rounds=2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from undergrowth.core import Context, Each, Method, Packet, Plan, Server, State, Sum, Task, View, Weights, not_finite
from undergrowth.learning import GradientClient


@dataclass(frozen=True)
class Alone(GradientClient):
    """Goes on training its own model, which the seed in the first packet starts."""

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        return own.get("model") or common_start(task, down.scalars["seed"])

    def send(self, task: Task, down: Packet, trained: Packet, own: State) -> tuple[Packet, State]:
        problem = not_finite(trained)
        tags = {"problem": problem} if problem else {}  # no tensor goes up, so the device has to say it itself
        return Packet(scalars=trained.scalars, tags=tags), {"model": dict(trained.tensors)}


@dataclass(frozen=True)
class Seeding(Server):
    """Sends the seed of the common start, round after round, and learns nothing."""

    reducer = Sum()

    def init(self, task: Task, context: Context) -> State:
        return {"seed": float(context.key("model") >> 15)}  # 48 bits: exact as a float

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        return {"seed": down.scalars["seed"]}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        return self.ask(task, view, context, Packet(scalars={"seed": state["seed"]}))

    def check(self, task: Task, up: Packet) -> str | None:
        return up.tags.get("problem")

    def step(self, task: Task, state: State, total: Packet, context: Context) -> State:
        return state


@dataclass(frozen=True)
class Bound(Method):
    """What the two share: the models are the devices' own."""

    client = Alone()
    server = Seeding()

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights]:
        trained = Each(own, lambda device: own[device]["model"])
        return trained or {"start": common_start(task, state["seed"])}

    def personal(self, task: Task, state: State, own: State) -> Weights:
        return own["model"] if own else common_start(task, state["seed"])


@dataclass(frozen=True)
class Local(Bound):
    """Every device alone: what a device gets without taking part."""

    pooled: ClassVar[bool] = False


@dataclass(frozen=True)
class Central(Bound):
    """All samples in one place: what a federation gives up."""

    pooled: ClassVar[bool] = True


def common_start(task: Task, seed: float) -> Weights:
    return task.model.initial(int(seed))
