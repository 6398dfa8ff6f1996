"""What the training of servers costs, on the device that an experiment gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from undergrowth.core import InputError, Node, Packet, suggest
from undergrowth.devices import Profile, Tracer, price_work, read_profile, shipped_profiles
from undergrowth.simulation import TrainingCost

FREE = "free"


def price_servers(
    device: str | Mapping[str, Any], nodes: Mapping[str, Node], inputs: Tensor, notes: list[str]
) -> dict[str, TrainingCost]:
    """Node → the cost of what its server trains in a round, for the servers that train; empty if that is free.

    `inputs`: some inputs, for their shape and type. Adds to `notes` if no server trains.
    """
    if device == FREE:
        return {}
    profile, costs = _profile(device), {}
    for name, node in nodes.items():
        training = node.server.own_training(node.task)
        if training is None:
            continue
        task = replace(node.task, augmentation=None)
        tracer = Tracer(task, training.client, tuple(inputs.shape[1:]), inputs.dtype)
        work = tracer.work(Packet(node.task.model.initial(0)), training.samples)
        price = price_work(profile, work, 0, 0)
        if not price.fits:
            raise InputError(
                f"fleet.server_device '{profile.name}': node '{name}' trains, which needs {work.memory / 1e6:.2f} MB, "
                f"and it has {profile.memory / 1e6:.2f} MB; choose a larger device"
            )
        joules = profile.compute_watts * price.seconds_compute
        costs[name] = TrainingCost(price.seconds_compute, work.flops, joules, training.beside)
    if not costs:
        notes.append("fleet.server_device has no effect: no server of this run trains")
    return costs


def _profile(given: str | Mapping[str, Any]) -> Profile:
    if not isinstance(given, str):
        return read_profile({"name": "of fleet.server_device", **given})
    if given not in shipped_profiles():
        raise InputError(f"fleet.server_device '{given}' is not known; {suggest(given, [FREE, *shipped_profiles()])}")
    return shipped_profiles()[given]
