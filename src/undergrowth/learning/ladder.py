"""Ladder: models of several sizes for devices of several speeds, and the assignment of devices to them.

The packet's tag `model` names the device's model; without a ladder that is the run's model and the name is empty. The
scalar `rung` of an upload gives the position of the model in the ladder, from which the server remembers it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from undergrowth.core import Model, ModelWeights, Packet, Task, View, Weights
from undergrowth.core.names import RUNG


def ladder_names(task: Task) -> tuple[str, ...]:
    """The names of the models that devices may have."""
    return tuple(task.ladder) or ("",)


def with_ladder_model(task: Task, name: str) -> Task:
    """The task of a device that has the model of this name."""
    return replace(task, model=task.ladder[name]) if name else task


def fit(task: Task, name: str, weights: Weights) -> Weights | ModelWeights:
    """Weights of the model of this name, in the form that evaluation takes."""
    return ModelWeights(task.ladder[name], weights) if name else weights


def assign_models(task: Task, view: View, packet: Callable[[str], Packet]) -> dict[str, str]:
    """Device → the name of its model: its earlier one, or else the largest that it can train by the deadline.

    packet: the packet for a device that has the model of this name. A device that can train none of them in time gets
    the smallest. Without a deadline the models are assigned in turn.
    """
    names, deadline = ladder_names(task), task.train.deadline
    falling = sorted(names, key=lambda name: -_size(with_ladder_model(task, name).model))

    def assign(position: int, device: str) -> str:
        earlier = view.heard.get(device, {}).get(RUNG)
        if earlier is not None:
            return names[int(earlier)]
        if deadline is None or len(names) == 1:
            return names[position % len(names)]
        in_time = (name for name in falling if view.knowledge.seconds(device, packet(name)) <= deadline)
        return next(in_time, falling[-1])

    return {device: assign(position, device) for position, device in enumerate(view.devices)}


def _size(model: Model) -> int:
    return sum(model.shapes[name].numel() for name in model.parameters)
