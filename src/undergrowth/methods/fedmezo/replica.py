"""The model that every device and the server hold alike, and the replay of rounds that brings one up to date."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from undergrowth.core import Packet, Task, Weights
from undergrowth.learning.directions import derive
from undergrowth.learning.zeroth_order import ZerothOrderOptions, direction, private_copy, shift

SLOPES = "slopes"  # uploads: g of each direction; downloads and server states: of each round, see `as_bits`
ROUND = "round"  # states and uploads: how many rounds led to the model; downloads: see `RoundOf`


class RoundOf(NamedTuple):
    """The seed of a run and the number of a round: a tensor of two integers in a download."""

    seed: int
    number: int

    @staticmethod
    def read(down: Packet) -> RoundOf:
        packed = down.tensors[ROUND]
        # A price is traced without values; it does not depend on the round.
        return RoundOf(0, len(down.tensors[SLOPES])) if packed.is_meta else RoundOf(*packed.tolist())

    def write(self, like: Tensor) -> Tensor:
        """The tensor, on the torch device of `like`."""
        return torch.tensor(self, device=like.device)

    def key(self, torch_device: torch.device) -> Tensor:
        """The key of the directions of this round."""
        return derive(torch.tensor(self.seed, device=torch_device), self.number)


def as_bits(slopes: Tensor) -> Tensor:
    """The same bits as integers, which a lossy codec of the downlink leaves as they are."""
    return slopes.view(torch.int64 if slopes.dtype == torch.float64 else torch.int32)


def as_slopes(bits: Tensor) -> Tensor:
    return bits.view(torch.float64 if bits.dtype == torch.int64 else torch.float32)


def shared_initial(task: Task, seed: int) -> Weights:
    """The initial model, which the devices of a process share. None of them may change it."""
    weights = task.model.initial(seed)
    return _share((tuple(weights), task.model.torch_device, seed), weights, [])


def replay(
    task: Task,
    options: ZerothOrderOptions,
    weights: Weights,
    first: RoundOf,
    bits: Tensor,
    in_place: bool = False,
    measured: bool = False,
) -> Weights:
    """The model after further rounds, the first of which is `first`; `bits` has a row of slopes for each.

    in_place: change `weights`; otherwise they stay. Devices of one process that replay the same rounds then share the
        result, and those that start from the same tensors compute it once.
    measured: the holder of `weights` has measured in the first of these rounds.
    """
    if not len(bits):
        return weights
    parameters = {name: weights[name] for name in task.model.parameters}
    if in_place or bits.is_meta:
        parameters = parameters if in_place else private_copy(parameters, torch.tensor(0))
        _replay(task, options, parameters, first, as_slopes(bits), measured)
        return {**weights, **parameters}
    description = (options, task.train, tuple(parameters), bits.device, first, tuple(map(tuple, bits.tolist())))
    known = _find(description, list(parameters.values()))
    if known is None:
        known = private_copy(parameters, torch.tensor(0))
        _replay(task, options, known, first, as_slopes(bits), measured)
        known = _share(description, known, list(parameters.values()))
    return {**weights, **known}


def _replay(
    task: Task, options: ZerothOrderOptions, parameters: Weights, first: RoundOf, slopes: Tensor, measured: bool
) -> None:
    torch_device = next(iter(parameters.values())).device
    if slopes.is_meta:  # a price: one perturbation takes the memory of all, and none has FLOPs
        shift(parameters, first.key(torch_device), options.walk)
        return
    for number, row in enumerate(slopes, first.number):
        key = RoundOf(first.seed, number).key(torch_device)
        if not (measured and number == first.number):  # measuring does the same, and rounds in the same way
            for position in range(options.directions):
                shift(parameters, direction(key, position), options.walk)
        options.descend(parameters, key, row.to(torch_device), options.rate(task, number))


class _Replayed(NamedTuple):
    description: Hashable
    before: Sequence[weakref.ref[Tensor]]
    after: dict[str, weakref.ref[Tensor]]

    @property
    def model(self) -> dict[str, Tensor] | None:
        """The result, if somebody holds it."""
        found = {name: reference() for name, reference in self.after.items()}
        alive = {name: value for name, value in found.items() if value is not None}
        return alive if len(alive) == len(found) else None


# The latest replays of this process. They are pure functions of their arguments, and in a simulation all devices
# replay the same rounds from the same tensors. Only weak references: a model lives as long as somebody holds it.
_LATEST: deque[_Replayed] = deque(maxlen=8)


def _find(description: Hashable, before: Sequence[Tensor]) -> dict[str, Tensor] | None:
    for entry in _LATEST:
        if entry.description == description and all(a() is b for a, b in zip(entry.before, before, strict=True)):
            return entry.model
    return None


def _share(description: Hashable, after: dict[str, Tensor], before: Sequence[Tensor]) -> dict[str, Tensor]:
    """Remembers a result, which is replaced by an equal one that somebody holds already.

    Devices that start from equal models in different tensors, for example because each was read from a file, hold the
    same tensors afterwards. So their next replay is computed once.
    """
    for model in [entry.model for entry in _LATEST if entry.description == description]:
        if model is not None and all(torch.equal(_bytes(model[name]), _bytes(after[name])) for name in after):
            after = model
            break
    after_references = {name: weakref.ref(value) for name, value in after.items()}
    _LATEST.append(_Replayed(description, [weakref.ref(value) for value in before], after_references))
    return after


def _bytes(value: Tensor) -> Tensor:
    """The bytes of each number. As numbers, 0 and −0 are equal, and NaN is not equal to itself."""
    return value.contiguous().unsqueeze(-1).view(torch.uint8)
