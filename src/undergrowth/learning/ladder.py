"""Ladder: models of several sizes for devices of several speeds, and the assignment of devices to them.

The packet's tag `model` names the device's model; without a ladder that is the run's model and the name is empty. The
scalar `rung` of an upload gives the position of the model in the ladder, from which the server remembers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain

from undergrowth.core import Context, InputError, Model, ModelWeights, Packet, Task, View, Weights
from undergrowth.core.names import RUNG


def ladder_names(task: Task) -> tuple[str, ...]:
    """The names of the models that devices may have."""
    return tuple(task.ladder) or ("",)


def fit(task: Task, name: str, weights: Weights) -> Weights | ModelWeights:
    """Weights of the model of this name, in the form that evaluation takes."""
    return ModelWeights(task.ladder[name], weights) if name else weights


def assign_counts(
    ladder: Mapping[str, Model], counts: Mapping[str, int], speeds: Mapping[str, float], seed: int
) -> dict[str, str]:
    """Device → the name of its model: `counts[name]` devices have the model `name`, and slower devices smaller models.

    speeds: device → FLOPs a second. Devices of equal speed are ordered at random by `seed`. Raises an `InputError` if
    the counts do not add up to the number of devices.
    """
    total = sum(counts.values())
    if total != len(speeds):
        raise InputError(
            f"model.ladder: the counts {' + '.join(map(str, counts.values()))} add up to {total}, "
            f"and there are {len(speeds)} devices; make both equal"
        )
    rising = sorted(counts, key=lambda name: _size(ladder[name]))
    devices = sorted(speeds, key=lambda device: (speeds[device], Context(seed, device, 0).key("model size")))
    return dict(zip(devices, chain.from_iterable([name] * counts[name] for name in rising), strict=True))


def assign_models(task: Task, view: View, packet: Callable[[str], Packet]) -> dict[str, str]:
    """Device → the name of its model: its earlier one, or else the largest that it can train by the deadline.

    packet: the packet for a device that has the model of this name. A device that can train none of them in time gets
    the smallest. Without a deadline the models are assigned in turn. `task.assigned` comes before all of this.
    """
    names, deadline = ladder_names(task), task.train.deadline
    falling = sorted(names, key=lambda name: -_size(task.of_device(name).model))

    def assign(position: int, device: str) -> str:
        if device in task.assigned:
            return task.assigned[device]
        earlier = view.heard.get(device, {}).get(RUNG)
        if earlier is not None:
            return names[int(earlier)]
        if deadline is None or len(names) == 1:
            return names[position % len(names)]
        in_time = (name for name in falling if view.knowledge.seconds(device, packet(name)) <= deadline)
        return next(in_time, falling[-1])

    return {device: assign(position, device) for position, device in enumerate(view.devices)}


def _size(model: Model) -> int:
    return sum(value.numel() for value in model.module.parameters())
