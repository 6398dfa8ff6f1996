"""Selection: which devices a server asks. A piece of its own, apart from methods and from where work runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from undergrowth.core.context import Context
from undergrowth.core.packet import Packet


class Knowledge(Protocol):
    """What a server knows of its devices before it asks them."""

    def samples(self, device: str) -> int:
        """How many samples it says it has."""
        ...

    def seconds(self, device: str, down: Packet) -> float:
        """How long it takes to do what `down` asks for, download and upload included."""
        ...

    def window(self, device: str) -> float:
        """How many seconds it will stay available."""
        ...

    def profile(self, device: str) -> object:
        """What it can do: a profile of the fleet."""
        ...


class Nothing:
    """The knowledge of a server that was told nothing: all devices are alike."""

    def samples(self, device: str) -> int:
        return 1

    def seconds(self, device: str, down: Packet) -> float:
        return 0.0

    def window(self, device: str) -> float:
        return math.inf

    def profile(self, device: str) -> object:
        return None


@dataclass(frozen=True)
class View:
    """What a node sees of its children when it plans."""

    idle: tuple[str, ...]  # may be asked now
    out: tuple[str, ...] = ()  # asked, and not back yet
    nodes: frozenset[str] = frozenset()  # those children that are nodes themselves, not devices
    knows: Knowledge = Nothing()
    heard: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # child → scalars of its last upload

    @property
    def devices(self) -> Sequence[str]:
        """The idle children that are devices."""
        return [child for child in self.idle if child not in self.nodes] if self.nodes else self.idle


class Selection:
    """`needs_loss`: devices send the mean loss of their training along."""

    needs_loss: bool = False

    def choose(self, count: int, view: View, down: Packet, context: Context) -> Sequence[str]:
        """So many of `view.devices`, or fewer, to whom `down` would be sent."""
        raise NotImplementedError("a selection defines choose")


@dataclass(frozen=True)
class Uniform(Selection):
    """Every device is as likely as any other."""

    def choose(self, count: int, view: View, down: Packet, context: Context) -> Sequence[str]:
        devices = view.devices
        if count >= len(devices):
            return devices
        picked = torch.randperm(len(devices), generator=context.generator("sample"))[:count].sort().values
        return [devices[position] for position in picked.tolist()]


def share_of(share: float, count: int) -> int:
    """How many devices a share of them is: at least one."""
    return min(count, max(1, round(share * count)))


def sampled(share: float, view: View, context: Context) -> list[str]:
    """All idle nodes, and a random share of the idle devices, at least one. Nodes sample their own devices."""
    nodes = [child for child in view.idle if child in view.nodes]
    return [*nodes, *Uniform().choose(share_of(share, len(view.devices)), view, Packet(), context)]
