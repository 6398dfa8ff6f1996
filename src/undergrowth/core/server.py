"""Server: what an inner node does, from the root down to the last edge server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from undergrowth.core.context import Context
from undergrowth.core.packet import Packet
from undergrowth.core.pytree import State
from undergrowth.core.reducers import Reducer, folded
from undergrowth.core.selection import View, share_of
from undergrowth.core.task import Task


@dataclass(frozen=True)
class Plan:
    sends: Mapping[str, Packet]
    deadline: float | None = None  # seconds after which those who are not back are given up
    enough: int | None = None  # so many arrivals end the round; None: all


@dataclass(frozen=True)
class Progress:
    """How far the open round is."""

    arrived: int
    lost: int
    out: int
    expired: bool  # the deadline has passed
    enough: int | None = None  # what the plan said


class Server:
    """The defaults fit a synchronous server; a rule overrides what it does otherwise.

    A server holds no state of its own: everything that changes is in the `state` that is handed in and
    returned, a plain tree that can be written to disk.
    """

    if TYPE_CHECKING:  # only declared: a server defines it as a class attribute, a field or a property

        @property
        def reducer(self) -> Reducer:
            raise NotImplementedError

    @property
    def accepts_partial(self) -> bool:
        """True: who cannot finish by the deadline sends what it has by then."""
        return False

    @property
    def asynchronous(self) -> bool:
        """True: asks again as soon as somebody is idle, keeps waiting for the others."""
        return False

    @property
    def waits_for_all(self) -> bool:
        """True: nothing depends on single arrivals, so engines may combine uploads."""
        return True

    def init(self, task: Task, context: Context) -> State:
        """The state before the first round."""
        return {"model": task.model.initial(context.key("model"))}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        """The state after the parent's packet has come (inner nodes only)."""
        return {**state, "model": dict(down.tensors)}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        """Who is asked, and what each is sent."""
        return self.ask(task, view, context, Packet(state["model"]))

    def steady_state(self, task: Task, state: State) -> State:
        """The state to price when the first round is not typical."""
        return state

    def ask(self, task: Task, view: View, context: Context, down: Packet, count: int | None = None) -> Plan:
        """The plan that sends `down` to all nodes and to the devices that the run's selection picks.

        Those are so many, or else the run's share of them, and as many more as the run over-selects.
        """
        train, devices = task.train, len(view.devices)
        needed = share_of(train.sample, devices) if count is None else max(0, min(count, devices))
        asked = min(devices, _up(needed * train.over_select)) if count is None else needed
        chosen = task.selection.choose(asked, view, down, context) if asked else ()
        children = [*(child for child in view.idle if child in view.nodes), *chosen]
        if self.asynchronous:  # it has no rounds that a deadline or a quorum could end
            return Plan(dict.fromkeys(children, down))
        enough = max(1, _up(train.quorum * needed)) + len(children) - len(chosen)
        return Plan(dict.fromkeys(children, down), train.deadline, enough if enough < len(children) else None)

    def check(self, task: Task, up: Packet) -> str | None:
        """Why an upload cannot be used, or None; that its values are finite has been seen to already.

        Engines call it before they combine anything.
        """
        return None

    def ready(self, progress: Progress) -> bool:
        """Whether the round ends. A node ends it in any case when nobody is out any more."""
        enough = progress.enough is not None and progress.arrived >= progress.enough
        return enough or progress.out == 0 or progress.expired

    def step(self, task: Task, state: State, total: Packet, context: Context) -> State:
        """The state after a round, from all uploads combined."""
        raise NotImplementedError(f"{type(self).__name__} does not say what a server does with the uploads")

    def report(self, task: Task, state: State, total: Packet | None, context: Context) -> Packet | None:
        """What a node that is not the root sends up after its rounds; None: it has nothing to say."""
        return None if total is None else folded(total)


@dataclass(frozen=True)
class Inner(Server):
    """Puts any server at an inner node: it asks its children like the root would and passes up what they sent.

    With it, a tree gives what a star gives, to float error: only the root steps.
    """

    root: Server

    @property
    def reducer(self) -> Reducer:
        return self.root.reducer

    def init(self, task: Task, context: Context) -> State:
        return {}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        return self.root.adopt(task, state, down, context)

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        return self.root.plan(task, state, view, context)

    def check(self, task: Task, up: Packet) -> str | None:
        return self.root.check(task, up)

    @property
    def accepts_partial(self) -> bool:
        return self.root.accepts_partial

    def step(self, task: Task, state: State, total: Packet, context: Context) -> State:
        return state


def _up(number: float) -> int:
    """The next whole number; rounded first, so that 1.1 times 10 is 11 and not a hair more."""
    return math.ceil(round(number, 9))


def not_finite(up: Packet) -> str | None:
    """Names the first tensor or number of an upload that is not finite."""
    tensors = {name: value for name, value in up.tensors.items() if value.is_floating_point() and value.numel()}
    for name, fine in zip(tensors, finite(list(tensors.values()))):
        if not fine:
            return f"'{name}' has values that are not finite"
    for name, number in up.scalars.items():
        if not abs(number) < float("inf"):
            return f"'{name}' is {number}"
    return None


def finite(tensors: list[Tensor]) -> list[bool]:
    """For each tensor whether all its values are finite. A GPU is asked once for all."""
    if not tensors:
        return []
    if tensors[0].is_cuda:
        # The largest magnitude is not finite where any value is not.
        largest = torch.stack([value.float() for value in torch._foreach_norm(tensors, float("inf"))])
        found: list[bool] = torch.isfinite(largest).tolist()
        return found
    return [all(math.isfinite(float(edge)) for edge in value.aminmax()) for value in tensors]
