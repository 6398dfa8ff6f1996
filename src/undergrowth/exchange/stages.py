"""Stages: the steps that an upload passes on its way to a node, each with two mirrored halves.

The device applies its halves in order (sign, change, encode; later clip, noise, mask). The node applies its halves in
reverse order and gets what can be recovered. A stage sees the upload of one device, before anything is combined.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from undergrowth.core import Context, Packet, State, Weights
from undergrowth.core.names import CHANGE
from undergrowth.exchange.codecs import Codec

SIGNS = "#signs"  # the tensor in which `SignStage` says which tensors have no negative value


class Stage:
    """The base of all stages; by default both halves pass packets unchanged.

    `reference` are the weights that the device received: both ends have them.
    """

    def apply(self, packet: Packet, reference: Weights, memory: State, context: Context) -> tuple[Packet, State]:
        """The device's half: what travels on, and what the device remembers for its next upload."""
        return packet, memory

    def remove(self, packet: Packet, reference: Weights) -> Packet:
        """The node's half."""
        return packet


@dataclass(frozen=True)
class SignStage(Stage):
    """Tensors without negative values arrive without negative values: a lossy codec must not spoil a variance.

    One byte per tensor of floating-point values says which tensors these are. A change that a method sends is none of
    them: what feedback adds to it may be negative.

    measured: as in `CodecStage`.
    """

    measured: frozenset[str] = frozenset()

    def apply(self, packet: Packet, reference: Weights, memory: State, context: Context) -> tuple[Packet, State]:
        floats = _floats(packet)
        if not floats:
            return packet, memory
        # A tensor rather than a tag, so that a GPU is not waited for.
        changes = {name for name, value in floats.items() if _is_change(name, value, reference, self.measured)}
        signs = torch.stack([(value >= 0).all() & (name not in changes) for name, value in floats.items()])
        return replace(packet, tensors={**packet.tensors, SIGNS: signs}), memory

    def remove(self, packet: Packet, reference: Weights) -> Packet:
        tensors = dict(packet.tensors)
        signs = tensors.pop(SIGNS, None)
        if signs is not None:
            floats = _floats(replace(packet, tensors=tensors))
            if signs.shape != (len(floats),):
                raise ValueError(f"it has signs for {tuple(signs.shape)} tensors and holds {len(floats)}")
            for name, sign in zip(floats, signs.unbind(0), strict=True):
                tensors[name] = torch.where(sign, tensors[name].clamp_min(0), tensors[name])
        return replace(packet, tensors=tensors)


@dataclass(frozen=True)
class ChangeStage(Stage):
    """A float tensor with the name, shape and type of one in the reference crosses as its change from it.

    Changes are small, so the same number of bits carries them more finely, and a value that top-k leaves out stays as
    it was instead of becoming zero. Other tensors cross as they are.

    measured: names of tensors that have their counterpart in the reference also if they are in a part of the packet,
    such as BatchNorm statistics beside the changes of parameters.
    """

    measured: frozenset[str] = frozenset()

    def apply(self, packet: Packet, reference: Weights, memory: State, context: Context) -> tuple[Packet, State]:
        changes = {name: value - other for name, value, other in self._pairs(packet, reference)}
        return replace(packet, tensors={**packet.tensors, **changes}), memory

    def remove(self, packet: Packet, reference: Weights) -> Packet:
        whole = {name: value + other for name, value, other in self._pairs(packet, reference)}
        return replace(packet, tensors={**packet.tensors, **whole})

    def _pairs(self, packet: Packet, reference: Weights) -> Iterator[tuple[str, Tensor, Tensor]]:
        """The name of each tensor that has a counterpart, the tensor, and its counterpart."""
        for name, value in packet.tensors.items():
            last = name.rpartition("/")[2]
            key = last if last in self.measured and name not in reference else name
            if _has_counterpart(key, value, reference):
                yield name, value, reference[key]


@dataclass(frozen=True)
class CodecStage(Stage):
    """Encodes and decodes. With `feedback`, the loss of a change is added to the next change of the same tensor.

    Over the rounds, what arrives then adds up to what was sent, except for the last loss. `memory` maps tensor names to
    losses; the losses of tensors that are not in this upload are kept. Tensors in the part `change` of an upload, named
    as received ones, are changes that the method itself has computed.

    measured: names of tensors without feedback, such as BatchNorm statistics, also as the last part of a path. A device
    measures them anew in every round, so its next change contains what was lost: with feedback it would count twice.

    one_model: an upload is one model, as a part of the packet whose name may change, such as that of a cluster. Losses
    are then remembered without that name, and belong to the next upload, whatever its name.
    """

    codec: Codec
    feedback: bool = True
    measured: frozenset[str] = frozenset()
    one_model: bool = False

    def apply(self, packet: Packet, reference: Weights, memory: State, context: Context) -> tuple[Packet, State]:
        if not self.feedback:
            return self.codec.encode(packet), memory
        known = {name: memory[key] for name in packet.tensors if (key := self._key(name)) in memory}
        changes = {
            name: value + known[name] if _has_counterpart(name, value, known) else value
            for name, value in packet.tensors.items()
            if (name.rpartition("/")[2] not in self.measured and _has_counterpart(name, value, reference))
            or _is_change(name, value, reference, self.measured)
        }
        encoded = self.codec.encode(replace(packet, tensors={**packet.tensors, **changes}))
        arrived = self.codec.decode(encoded).tensors
        # A loss that is not finite is forgotten: the server refuses this upload, and later ones must not suffer.
        losses = {self._key(name): (change - arrived[name]).nan_to_num(0, 0, 0) for name, change in changes.items()}
        return encoded, {**memory, **losses}

    def _key(self, name: str) -> str:
        """The name under which the loss of a tensor is remembered."""
        return name.partition("/")[2] if self.one_model else name

    def remove(self, packet: Packet, reference: Weights) -> Packet:
        return self.codec.decode(packet)


@dataclass(frozen=True)
class Link:
    """A stack of stages."""

    stages: tuple[Stage, ...] = ()

    def send(self, packet: Packet, reference: Weights, memory: State, context: Context) -> tuple[Packet, State]:
        """What travels, and what the sender remembers."""
        for stage in self.stages:
            packet, memory = stage.apply(packet, reference, memory, context)
        return packet, memory

    def receive(self, packet: Packet, reference: Weights) -> Packet:
        """What the receiver gets."""
        for stage in reversed(self.stages):
            packet = stage.remove(packet, reference)
        return packet


def _floats(packet: Packet) -> dict[str, Tensor]:
    return {name: value for name, value in packet.tensors.items() if value.is_floating_point() and value.numel()}


def _has_counterpart(name: str, value: Tensor, others: Weights) -> bool:
    """Whether `others` has a float tensor of that name, shape and type."""
    other = others.get(name)
    return other is not None and value.is_floating_point() and other.shape == value.shape and other.dtype == value.dtype


def _is_change(name: str, value: Tensor, reference: Weights, measured: frozenset[str]) -> bool:
    """Whether the method sends a change of a received tensor, and not what the device has measured."""
    part, _, key = name.partition("/")
    return part == CHANGE and key not in measured and _has_counterpart(key, value, reference)
