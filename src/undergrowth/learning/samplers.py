"""Samplers: which devices a server asks, chosen by what it knows about them and by their last uploads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from undergrowth.core import Context, InputError, Packet, Sampler, Train, UniformSampler, View
from undergrowth.core.names import LOSS
from undergrowth.core.notation import Form, Number, parse
from undergrowth.core.samplers import ceil_of


@dataclass(frozen=True)
class DataSampler(Sampler):
    """Draws devices with a probability proportional to their number of samples."""

    def choose(self, count: int, view: View, down: Packet, context: Context) -> Sequence[str]:
        devices = view.devices
        weights = torch.tensor([float(view.knowledge.samples(device)) for device in devices])
        count = min(count, int((weights > 0).sum()))
        if not count:
            return []
        picked = torch.multinomial(weights, count, generator=context.generator("sample"))
        return [devices[position] for position in picked.sort().values.tolist()]


@dataclass(frozen=True)
class AvailableSampler(Sampler):
    """Draws uniformly among the devices that stay available until they finish."""

    def choose(self, count: int, view: View, down: Packet, context: Context) -> Sequence[str]:
        lasting = tuple(d for d in view.devices if view.knowledge.window(d) >= view.knowledge.seconds(d, down))
        if not lasting:  # ask the device that stays longest, so that the round is not empty
            return sorted(view.devices, key=view.knowledge.window, reverse=True)[:1]
        return UniformSampler().choose(count, View(lasting), down, context)


@dataclass(frozen=True)
class FedCSSampler(Sampler):
    """The fastest devices among those that finish by the deadline (after Nishio and Yonetani 2019).

    In the paper all devices share one uplink; here every device has its own.
    """

    deadline: float

    def choose(self, count: int, view: View, down: Packet, context: Context) -> Sequence[str]:
        times = {device: view.knowledge.seconds(device, down) for device in view.devices}
        in_time = [device for device in sorted(times, key=times.__getitem__) if times[device] <= self.deadline]
        return in_time[:count]


@dataclass(frozen=True)
class PowerOfChoiceSampler(Sampler):
    """Draws candidates by their number of samples and takes those with the highest loss (Cho et al. 2022).

    The loss is the one that a device last reported, the paper's variant without extra messages. Devices that have not
    reported any come first.
    """

    candidates: float  # number of candidates, as a multiple of the devices to ask
    needs_loss: bool = True

    def choose(self, count: int, view: View, down: Packet, context: Context) -> Sequence[str]:
        drawn = DataSampler().choose(ceil_of(self.candidates * count), view, down, context)
        return sorted(drawn, key=lambda device: -_last_loss(view, device))[:count]


@dataclass(frozen=True)
class OortSampler(Sampler):
    """The devices of highest utility, and a fraction of devices that were never asked (after Lai et al. 2021).

    Utility = samples · last training loss. For a device slower than the preferred time t it is multiplied by
    (t / its time)². Oort adapts t and adds a bonus for age; here t is the deadline, or the median of all times.
    """

    deadline: float | None
    explore: float = 0.2  # fraction of devices that were never asked
    needs_loss: bool = True

    def choose(self, count: int, view: View, down: Packet, context: Context) -> Sequence[str]:
        known = [device for device in view.devices if _last_loss(view, device) < math.inf]
        fresh = tuple(device for device in view.devices if device not in set(known))
        times = {device: view.knowledge.seconds(device, down) for device in known}
        preferred = self.deadline or sorted(times.values() or (0.0,))[len(times) // 2]

        def utility(device: str) -> float:
            speed = min(1.0, (preferred / times[device]) ** 2) if times[device] else 1.0
            return view.knowledge.samples(device) * _last_loss(view, device) * speed

        new = min(len(fresh), max(round(self.explore * count), count - len(known)))
        best = sorted(known, key=utility, reverse=True)[: count - new]
        return [*best, *UniformSampler().choose(new, View(fresh), down, context)]


def _last_loss(view: View, device: str) -> float:
    """Last reported training loss of the device; inf if it never reported one.

    An upload of several parts has it under the name of a part.
    """
    heard = view.heard.get(device, {})
    return next((value for name, value in heard.items() if name.rpartition("/")[2] == LOSS), math.inf)


FORMS = {
    "uniform": Form(),
    "data": Form(),
    "available": Form(),
    "fedcs": Form(),
    "power-of-choice": Form((Number("TIMES", at_least=1, default=2.0),), "power-of-choice:2"),
    "oort": Form(),
}


def build_sampler(text: str, train: Train) -> Sampler:
    """The sampler that `train.sampler` names: uniform, data, available, fedcs, power-of-choice[:TIMES] or oort."""
    name, numbers = parse("train.sampler", text, FORMS)
    if name == "power-of-choice":
        return PowerOfChoiceSampler(numbers[0])
    if name == "fedcs":
        if train.deadline is None:
            raise InputError(f"train.sampler '{text}' needs a deadline: set fleet.deadline to the seconds of a round")
        return FedCSSampler(train.deadline)
    if name == "oort":
        return OortSampler(train.deadline)
    return {"uniform": UniformSampler(), "data": DataSampler(), "available": AvailableSampler()}[name]
