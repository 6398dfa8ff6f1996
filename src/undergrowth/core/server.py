"""Server: the rule of an inner node, from the root down to the last edge server."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from undergrowth.core.asks import Partial
from undergrowth.core.client import Client
from undergrowth.core.context import Context
from undergrowth.core.errors import InputError
from undergrowth.core.names import MODEL
from undergrowth.core.packet import Packet, Weights
from undergrowth.core.pytree import State
from undergrowth.core.reducers import Reducer
from undergrowth.core.samplers import View, ceil_of, count_of
from undergrowth.core.task import Task


@dataclass(frozen=True)
class Plan:
    """What a server asks of its children now."""

    packets: Mapping[str, Packet]  # child → packet
    deadline: float | None = None  # seconds after which open asks are given up
    enough: int | None = None  # number of arrivals that end the round; None: all


@dataclass(frozen=True)
class Progress:
    """How far the open round is."""

    arrived: int
    lost: int
    out: int
    expired: bool  # whether the deadline has passed
    enough: int | None = None  # as in the plan


class ServerTraining(NamedTuple):
    """What a server itself trains in a round: as `client` would, with `samples` samples.

    `beside`: while its children work, and the round ends when both have finished. Otherwise it trains after it has
    combined their uploads, before it asks them again or answers its parent.
    """

    client: Client
    samples: int
    beside: bool = False


class Server:
    """The base of all server rules; its defaults are those of a synchronous server.

    A server object never changes. Everything that changes is in `state`, a pytree that methods get and return.
    """

    @property
    def reducer(self) -> Reducer:
        """How uploads are combined."""
        raise NotImplementedError(f"{type(self).__name__} does not say how uploads are combined")

    @property
    def accepts_partial(self) -> bool:
        """Whether a device that cannot finish by the deadline sends the work it has done by then."""
        return False

    @property
    def asynchronous(self) -> bool:
        """Whether the server plans again as soon as a child is idle, and keeps waiting for the others."""
        return False

    @property
    def waits_for_all(self) -> bool:
        """Whether nothing depends on single arrivals, so that engines may combine uploads."""
        return True

    @property
    def ignored_settings(self) -> frozenset[str]:
        """Settings of an experiment that this server does not use, such as "train.sample".

        If a user sets one of them, a note of the run says that it has no effect.
        """
        return frozenset({"fleet.deadline", "train.quorum"}) if self.asynchronous else frozenset()

    def init(self, task: Task, context: Context) -> State:
        """The state before the first round."""
        return {MODEL: task.model.initial(context.key("model"))}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        """The state after a packet of the parent (nodes below the root only)."""
        return {**state, MODEL: dict(down.tensors)}

    def phases(self, task: Task, context: Context) -> Sequence[str]:
        """The phases of this round, by name: one after the other, the server plans, waits for answers and steps.

        Only the first one counts as a turn of its devices. A phase in which nobody arrives ends the round. The plan
        finds the name in `view.phase`. An asynchronous server has one phase.
        """
        return ("",)

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        """Which children are asked, and with which packet each."""
        return self.ask(task, view, context, Packet(model_in(state)))

    def steady_state(self, task: Task, state: State) -> State:
        """The state to price when the first round is not typical."""
        return state

    def ask(self, task: Task, view: View, context: Context, down: Packet, count: int | None = None) -> Plan:
        """The plan that sends `down` to all idle nodes and to the devices that the run's sampler chooses.

        The sampler chooses `count` devices, or by default `train.sample` of all × `train.over_select`.
        """
        train, devices = task.train, len(view.devices)
        needed = count_of(train.sample, devices) if count is None else max(0, min(count, devices))
        asked = train.count_to_ask(devices) if count is None else needed
        chosen = task.sampler.choose(asked, view, down, context) if asked else ()
        children = [*(child for child in view.idle if child in view.nodes), *chosen]
        if self.asynchronous:  # without rounds, there is nothing for a deadline or a quorum to end
            return Plan(dict.fromkeys(children, down))
        enough = max(1, ceil_of(train.quorum * needed)) + len(children) - len(chosen)
        return Plan(dict.fromkeys(children, down), train.deadline, enough if enough < len(children) else None)

    def check(self, task: Task, up: Packet) -> str | None:
        """Why the upload of one child cannot be used, or None.

        Called where an upload comes in, before anything is combined. Its values are known to be finite.
        """
        return None

    def ready(self, progress: Progress) -> bool:
        """Whether the round ends. A node without open asks ends its round in any case."""
        enough = progress.enough is not None and progress.arrived >= progress.enough
        return enough or progress.out == 0 or progress.expired

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        """The state after a round, from all its uploads combined.

        `context.devices` and `context.samples` are the numbers of devices in the federation and of their samples,
        `context.asked` is the number of children that were asked.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what a server does with the uploads")

    def own_training(self, task: Task) -> ServerTraining | None:
        """What `step` trains, to price it; None if it trains nothing."""
        return None

    def report(self, task: Task, state: State, partial: Packet | None, context: Context) -> Packet | Partial | None:
        """What a node below the root answers its parent after its rounds; None if it has nothing to send.

        By default the partial result of its last round, which the parent merges with those of other nodes. A plain
        packet is treated by the parent like the upload of a device.
        """
        return None if partial is None else Partial(partial)

    def expected_answer(self, node: str, uploads: Mapping[str, Packet]) -> Packet | None:
        """A packet with the form of what `report` returns after these uploads of children, to price it.

        Its tensors have no values. None: it has the form of the partial result.
        """
        return None


@dataclass(frozen=True)
class InnerServer(Server):
    """Puts any server at an inner node: it asks its children as the root would, and passes up what they sent.

    A tree of such nodes gives what a star gives, to float error, because only the root steps.
    """

    root: Server

    @property
    def reducer(self) -> Reducer:
        return self.root.reducer

    @property
    def accepts_partial(self) -> bool:
        return self.root.accepts_partial

    def init(self, task: Task, context: Context) -> State:
        return {}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        return self.root.adopt(task, state, down, context)

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        return self.root.plan(task, state, view, context)

    def check(self, task: Task, up: Packet) -> str | None:
        return self.root.check(task, up)

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        return state


def model_in(state: State) -> Weights:
    """The model in a server's state. Raises `InputError` if there is none."""
    if MODEL not in state:
        names = ", ".join(f"'{name}'" for name in state) or "nothing"
        raise InputError(
            f"method: the server's state has no '{MODEL}', only {names}; return one from `init`, `adopt` and `step`, "
            "or define what to send in the server's `plan` and what to evaluate in the method's `models` and `personal`"
        )
    weights: Weights = state[MODEL]
    return weights


def find_non_finite(up: Packet) -> str | None:
    """Which tensor or number of an upload is not finite, in words; None if all are."""
    tensors = {name: value for name, value in up.tensors.items() if value.is_floating_point() and value.numel()}
    for name, is_finite in zip(tensors, are_finite(list(tensors.values())), strict=True):
        if not is_finite:
            return f"'{name}' has values that are not finite"
    for name, number in up.scalars.items():
        if not abs(number) < float("inf"):
            return f"'{name}' is {number}"
    return None


def are_finite(tensors: list[Tensor]) -> list[bool]:
    """For each tensor whether all its values are finite. Waits for a GPU once, not once a tensor.

    Views of one tensor, such as those of the clients in a stack, are checked together.
    """
    wholes = {id(whole): whole for value in tensors for whole in [value if value._base is None else value._base]}
    if len(wholes) < len(tensors) and all(are_finite(list(wholes.values()))):
        return [True] * len(tensors)
    if not tensors:
        return []
    if tensors[0].is_cuda:
        # The largest magnitude of a tensor is finite exactly if all its values are.
        largest = torch.stack([value.float() for value in torch._foreach_norm(tensors, float("inf"))])
        found: list[bool] = torch.isfinite(largest).tolist()
        return found
    return [all(math.isfinite(float(edge)) for edge in value.aminmax()) for value in tensors]
