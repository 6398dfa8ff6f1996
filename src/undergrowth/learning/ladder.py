"""Ladders: models of several sizes for devices of several strengths. Who has which, and a client that trains its own.

The packet's tag `model` names the model that a device has; without a ladder that is the run's own, and the name is
empty. The number `rung` of an upload says it back, and so a server remembers it for as long as the run lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from undergrowth.core import (
    Batch,
    Carry,
    Context,
    Fitted,
    InputError,
    Model,
    Packet,
    Plan,
    Server,
    Shard,
    State,
    Steps,
    Task,
    View,
    Weights,
)  # fmt: skip
from undergrowth.learning.gradient_client import GradientClient
from undergrowth.learning.slices import OfSlices

MODEL, RUNG = "model", "rung"


def rungs(task: Task) -> tuple[str, ...]:
    """The names of the models that devices may have."""
    return tuple(task.ladder) or ("",)


def on_rung(task: Task, name: str) -> Task:
    """The task of a device that has the model of this name."""
    return replace(task, model=task.ladder[name]) if name else task


def fitted(task: Task, name: str, weights: Weights) -> Weights | Fitted:
    """Weights of a device's model, for whoever evaluates them."""
    return Fitted(task.ladder[name], weights) if name else weights


def rungs_of(task: Task, view: View, packet: Callable[[str], Packet]) -> dict[str, str]:
    """Device → the name of its model: that which it had before, and else the largest that is done by the deadline.

    packet: what a device with the model of this name is sent. Who can do none of them by then gets the smallest; where
    there is no deadline, the models are dealt in turn.
    """
    names, deadline = rungs(task), task.train.deadline
    falling = sorted(names, key=lambda name: -_size(on_rung(task, name).model))

    def chosen(place: int, device: str) -> str:
        before = view.heard.get(device, {}).get(RUNG)
        if before is not None:
            return names[int(before)]
        if deadline is None or len(names) == 1:
            return names[place % len(names)]
        fitting = (name for name in falling if view.knows.seconds(device, packet(name)) <= deadline)
        return next(fitting, falling[-1])

    return {device: chosen(place, device) for place, device in enumerate(view.devices)}


def _size(model: Model) -> int:
    return sum(model.shapes[name].numel() for name in model.parameters)


def ask_each(
    server: Server, task: Task, view: View, context: Context, packets: Mapping[str, Packet], everybody: bool = False
) -> Plan:
    """The server's plan, in which every child is sent its own packet. `everybody`: all, and without a deadline."""
    if everybody:
        plan = Plan(dict.fromkeys(view.idle, Packet()))
    else:
        plan = server.ask(task, replace(view, knows=OfSlices(view.knows, packets)), context, Packet())
    # Those with the same packet one after the other: links and prices remember the latest.
    places: dict[int, int] = {}
    for packet in packets.values():
        places.setdefault(id(packet), len(places))
    order = sorted(plan.sends, key=lambda child: places[id(packets[child])])
    return replace(plan, sends={child: packets[child] for child in order})


@dataclass(frozen=True)
class LadderClient(GradientClient):
    """Trains the model that the packet names. What it sends and keeps beside that, `conclude` says."""

    def conclude(
        self, task: Task, down: Packet, trained: Packet, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        """The upload and the device's own state, from what was trained. The task's model is the device's."""
        return trained, own

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        name = down.tags.get(MODEL, "")
        carry, steps = super().begin(on_rung(task, name), down, shard, own, context)
        return {**carry, MODEL: name}, steps

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        return super().step(on_rung(task, carry[MODEL]), carry, batch)

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        seen = on_rung(task, carry[MODEL])
        trained, own = super().finish(seen, down, carry, shard, own, context)
        up, own = self.conclude(seen, down, trained, shard, own, context)
        return replace(up, scalars={**up.scalars, RUNG: float(rungs(task).index(carry[MODEL]))}), own


def generic_data(task: Task, method: str, labelled: bool = False) -> Shard:
    """The data that the server holds, or one sentence about what is missing."""
    if task.public is None:
        raise InputError(f"public: {method} needs data that the server holds; add public: 0.1, or -s public=0.1")
    if labelled and bool((task.public.y < 0).any()):
        raise InputError(f"public.labelled false: {method} learns from the labels of the server's data; write true")
    return task.public


def levels_of(task: Task) -> tuple[str, ...]:
    """The levels that all models of the run name, other than the last layer."""
    models = (task.model, *task.ladder.values())
    return tuple(level for level in task.model.levels if level != "head" and all(level in m.levels for m in models))


def check_alike(task: Task, x: torch.Tensor, levels: Sequence[str], outlines: Sequence[str] = ()) -> None:
    """Refuses device models whose outputs, or maps at some levels, have other shapes than the run's model.

    outlines: levels at which only height and width must be the same.
    """
    wanted = _shapes(task.model, x, levels, outlines)
    for name, model in task.ladder.items():
        try:
            found = _shapes(model, x, levels, outlines)
        except InputError as error:
            raise InputError(f"model.ladder '{name}': {error}") from None
        for what, shape in found.items():
            if shape != wanted[what]:
                raise InputError(
                    f"model.ladder '{name}': its {what} are {shape} and those of the run's model {wanted[what]}; "
                    "they must be alike, as those of Wide ResNets of one width are"
                )


def _shapes(model: Model, x: torch.Tensor, levels: Sequence[str], outlines: Sequence[str]) -> dict[str, str]:
    with torch.no_grad():
        output = model.run(model.initial(0), x[:1], maps=(*levels, *outlines))
    shapes = {"outputs": tuple(output.logits.shape[1:])}
    for level, features in output.maps.items():
        shape = tuple(features.shape[1:])
        # The first of several sizes is the channels; flat features have none.
        shapes[f"maps at level '{level}'"] = shape[1:] if len(shape) > 1 and level not in levels else shape
    return {what: "×".join(str(size) for size in shape) for what, shape in shapes.items()}
