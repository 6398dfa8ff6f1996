"""Samplers: which devices a server asks, independent of methods and engines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from undergrowth.core.context import Context
from undergrowth.core.packet import Packet


class DeviceKnowledge(Protocol):
    """What a server knows about its devices before it asks them."""

    def samples(self, device: str) -> int:
        """The number of its samples."""
        ...

    def seconds(self, device: str, down: Packet) -> float:
        """How long it takes for the work that `down` asks for, download and upload included."""
        ...

    def window(self, device: str) -> float:
        """For how many seconds it stays available."""
        ...

    def speed(self, device: str) -> float:
        """FLOPs a second that it achieves."""
        ...


class NoKnowledge:
    """No facts about devices: all are equal."""

    def samples(self, device: str) -> int:
        return 1

    def seconds(self, device: str, down: Packet) -> float:
        return 0.0

    def window(self, device: str) -> float:
        return math.inf

    def speed(self, device: str) -> float:
        return 1.0


@dataclass(frozen=True)
class View:
    """What a node sees of its children when it plans."""

    idle: tuple[str, ...]  # may be asked now
    out: tuple[str, ...] = ()  # asked, without an answer yet
    nodes: frozenset[str] = frozenset()  # children that are nodes, not devices
    knowledge: DeviceKnowledge = NoKnowledge()
    heard: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # child → scalars of its last upload
    phase: str = ""  # of `Server.phases`
    answered: Sequence[str] = ()  # arrived in earlier phases of this round or, in its first phase, in the round before

    @property
    def devices(self) -> Sequence[str]:
        """The idle children that are devices."""
        return [child for child in self.idle if child not in self.nodes] if self.nodes else self.idle


class Sampler:
    """The base of samplers. `needs_loss`: uploads must have the mean training loss."""

    needs_loss: bool = False

    def choose(self, count: int, view: View, down: Packet, context: Context) -> Sequence[str]:
        """At most `count` of `view.devices`, to which `down` will be sent."""
        raise NotImplementedError("a sampler defines choose")


@dataclass(frozen=True)
class UniformSampler(Sampler):
    """All devices are equally likely."""

    def choose(self, count: int, view: View, down: Packet, context: Context) -> Sequence[str]:
        devices = view.devices
        if count >= len(devices):
            return devices
        picked = torch.randperm(len(devices), generator=context.generator("sample"))[:count].sort().values
        return [devices[position] for position in picked.tolist()]


def count_of(fraction: float, count: int) -> int:
    """`fraction` of `count`, rounded; at least 1 and at most `count`."""
    return min(count, max(1, round(fraction * count)))


def ceil_of(number: float) -> int:
    """The next whole number. Rounded to 9 digits first: 1.1 · 10 is 11, although floats give a little more."""
    return math.ceil(round(number, 9))
