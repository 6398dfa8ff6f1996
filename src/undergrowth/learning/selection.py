"""Selections: which devices a server asks, by what it knows of them and has heard from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from undergrowth.core import Context, InputError, Packet, Selection, Train, Uniform, View, nearest


@dataclass(frozen=True)
class ByData(Selection):
    """Devices with more samples are likelier, in proportion."""

    def choose(self, count: int, view: View, down: Packet, context: Context) -> Sequence[str]:
        devices = view.devices
        weights = torch.tensor([float(view.knows.samples(device)) for device in devices])
        count = min(count, int((weights > 0).sum()))
        if not count:
            return []
        picked = torch.multinomial(weights, count, generator=context.generator("sample"))
        return [devices[position] for position in picked.sort().values.tolist()]


@dataclass(frozen=True)
class Available(Selection):
    """At random among those that will stay available until they are done."""

    def choose(self, count: int, view: View, down: Packet, context: Context) -> Sequence[str]:
        lasting = tuple(d for d in view.devices if view.knows.window(d) >= view.knows.seconds(d, down))
        if not lasting:  # somebody has to try
            return sorted(view.devices, key=view.knows.window, reverse=True)[:1]
        return Uniform().choose(count, View(lasting), down, context)


@dataclass(frozen=True)
class FedCS(Selection):
    """The fastest, as many as can be done by the deadline (after Nishio and Yonetani 2019).

    Theirs also shares one uplink among all devices; here every device has its own.
    """

    deadline: float

    def choose(self, count: int, view: View, down: Packet, context: Context) -> Sequence[str]:
        times = {device: view.knows.seconds(device, down) for device in view.devices}
        in_time = [device for device in sorted(times, key=times.__getitem__) if times[device] <= self.deadline]
        return in_time[:count]


@dataclass(frozen=True)
class PowerOfChoice(Selection):
    """Draws candidates by their data and takes those with the highest loss last heard (Cho et al. 2022).

    Those who were never heard come first. The loss is that of their last training, the paper's variant without
    extra messages.
    """

    candidates: float  # times the number of devices that are asked
    needs_loss: bool = True

    def choose(self, count: int, view: View, down: Packet, context: Context) -> Sequence[str]:
        drawn = ByData().choose(math.ceil(self.candidates * count), view, down, context)
        return sorted(drawn, key=lambda device: -_loss(view, device))[:count]


@dataclass(frozen=True)
class Oort(Selection):
    """Utility times speed, with a share of devices never tried (after Lai et al. 2021).

    Utility = samples · loss of the last training; a device slower than the preferred time t has it multiplied by
    (t / its time)². Oort adapts t and adds a bonus for age; here t is the deadline, or the median of all.
    """

    deadline: float | None
    explore: float = 0.2
    needs_loss: bool = True

    def choose(self, count: int, view: View, down: Packet, context: Context) -> Sequence[str]:
        tried = [device for device in view.devices if _loss(view, device) < math.inf]
        fresh = tuple(device for device in view.devices if device not in set(tried))
        times = {device: view.knows.seconds(device, down) for device in tried}
        preferred = self.deadline or sorted(times.values() or (0.0,))[len(times) // 2]

        def utility(device: str) -> float:
            speed = min(1.0, (preferred / times[device]) ** 2) if times[device] else 1.0
            return view.knows.samples(device) * _loss(view, device) * speed

        new = min(len(fresh), max(round(self.explore * count), count - len(tried)))
        best = sorted(tried, key=utility, reverse=True)[: count - new]
        return [*best, *Uniform().choose(new, View(fresh), down, context)]


def _loss(view: View, device: str) -> float:
    """That of its last training, in whichever part of its upload it was; endless where none was heard."""
    heard = view.heard.get(device, {})
    return next((value for name, value in heard.items() if name.rpartition("/")[2] == "loss"), math.inf)


def selection(text: str, train: Train) -> Selection:
    """uniform, data, available, fedcs, power-of-choice[:TIMES] or oort, by name."""
    kind, _, number = text.partition(":")
    if kind == "power-of-choice":
        try:
            times = float(number or 2)
        except ValueError:
            times = 0.0
        if not 1 <= times < math.inf:
            raise InputError(f"train.sampler '{text}': the number of candidates must be at least 1 times those asked")
        return PowerOfChoice(times)
    if kind == "fedcs" and train.deadline is None:
        raise InputError(f"train.sampler '{text}' needs a deadline: set fleet.deadline to the seconds of a round")
    known = {
        "uniform": Uniform(),
        "data": ByData(),
        "available": Available(),
        "fedcs": FedCS(train.deadline or math.inf),
        "oort": Oort(train.deadline),
    }
    if kind not in known or number:
        raise InputError(f"train.sampler '{text}' is not known; {nearest(text, [*known, 'power-of-choice'])}")
    return known[kind]
