"""Reducers: how uploads are combined, so that any worker, edge server or engine may combine some of them first.

Each is a commutative monoid up to float error. `lift` turns one upload into a partial result, `merge` joins two
partial results; a partial result is itself a packet and travels like one. Means are kept as running means (the
mean so far and its weight), not as sums to be divided at the end: nothing overflows, whatever the weights, and
the mean of one upload is that upload bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from undergrowth.core.packet import Packet

V = TypeVar("V")
FOLDED = "folded"  # the tag of a packet that is already a partial result


class Reducer(Protocol):
    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        """One upload as a partial result. `age`: how many server versions passed since the sender was asked."""
        ...

    def merge(self, a: Packet, b: Packet) -> Packet: ...

    def aged(self, total: Packet, age: int) -> Packet:
        """A partial result that took so many server versions to come."""
        ...


def lifted(reducer: Reducer, sender: str, up: Packet, age: int = 0) -> Packet:
    """A partial result out of one upload, or out of one from further down the tree that is combined already."""
    if FOLDED in up.tags:
        return reducer.aged(replace(up, tags={k: v for k, v in up.tags.items() if k != FOLDED}), age)
    return reducer.lift(sender, up, age)


def fold(reducer: Reducer, total: Packet | None, sender: str, up: Packet, age: int = 0) -> Packet:
    """`total` with one more upload."""
    one = lifted(reducer, sender, up, age)
    return one if total is None else reducer.merge(total, one)


def unusable(error: ValueError | KeyError) -> str:
    """What `fold` found wrong with an upload, in words."""
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)


def folded(total: Packet) -> Packet:
    """A partial result, marked as such for the node that it is sent to."""
    return replace(total, tags={**total.tags, FOLDED: "1"})


def undiscounted(age: int) -> float:
    return 1.0


class Ageless:
    """What reducers share for which age does not count."""

    def aged(self, total: Packet, age: int) -> Packet:
        return total


@dataclass(frozen=True)
class Sum(Ageless):
    """Adds tensors and scalars by name; what a sender left out counts as zero."""

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        return Packet({k: _wide(v) for k, v in up.tensors.items()}, up.scalars)

    def merge(self, a: Packet, b: Packet) -> Packet:
        tensors = union(a.tensors, b.tensors, lambda x, y: x + _same_shape(x, y))
        return Packet(tensors, union(a.scalars, b.scalars, lambda x, y: x + y))


@dataclass(frozen=True)
class WeightedMean:
    """The mean of all uploads, each weighed by its scalar `weight` (None: all alike) times discount(age).

    In the result the weight's scalar is the total weight and every other scalar a weighted mean. Integer tensors,
    such as BatchNorm's counters, are not averaged: the largest is taken.
    """

    weight: str | None = "samples"
    discount: Callable[[int], float] = undiscounted

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        weight = _weight((1.0 if self.weight is None else up.scalars[self.weight]) * self.discount(age))
        tensors, scalars = _weighed(up, weight)
        return Packet(tensors, {**scalars, self._total: weight})

    def merge(self, a: Packet, b: Packet) -> Packet:
        weight = a.scalars[self._total] + b.scalars[self._total]
        merged = _blend(a, b, b.scalars[self._total] / weight if weight else 0.0)
        return replace(merged, scalars={**merged.scalars, self._total: weight})

    def merge_all(self, parts: Sequence[Packet]) -> Packet:
        """Like `merge` for many that are alike, at once: a GPU takes longer to be asked than to do a single one."""
        weights = [part.scalars[self._total] for part in parts]
        total = sum(weights)
        shares = [weight / total for weight in weights] if total else [1.0] + [0.0] * (len(parts) - 1)
        columns = {name: [part.tensors[name] for part in parts] for name in parts[0].tensors}
        known = [k for k in parts[0].scalars if _finite(*(part.scalars.get(k) for part in parts))]
        scalars = {k: math.fsum(share * part.scalars[k] for share, part in zip(shares, parts)) for k in known}
        factors = {kind: _there(torch.tensor(shares, dtype=kind), parts[0]) for kind in _kinds(parts[0])}
        tensors = {name: _mean(values, factors) for name, values in columns.items()}
        return Packet(tensors, {**scalars, self._total: total})

    def aged(self, total: Packet, age: int) -> Packet:
        # Exact, because what a server combines within one of its own versions has no age of its own.
        return replace(total, scalars={**total.scalars, self._total: total.scalars[self._total] * self.discount(age)})

    @property
    def _total(self) -> str:
        return self.weight or "uploads"


@dataclass(frozen=True)
class TiltedMean(Ageless):
    """A mean with weights samples·exp(t·loss): t > 0 favours those who are badly off, t = 0 is `WeightedMean`.

    Weights are kept as logarithms, so a loss of 100 with t = 5 does not overflow.
    """

    t: float
    loss: str = "loss"
    weight: str = "samples"

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        weight = _weight(up.scalars[self.weight])
        log_weight = math.log(weight) + self.t * up.scalars[self.loss] if weight else -math.inf
        tensors, scalars = _weighed(up, weight)
        return Packet(tensors, {**scalars, "log_weight": log_weight})

    def merge(self, a: Packet, b: Packet) -> Packet:
        first, second = a.scalars["log_weight"], b.scalars["log_weight"]
        top = max(first, second)
        total = top if top == -math.inf else top + math.log(math.exp(first - top) + math.exp(second - top))
        merged = _blend(a, b, 0.0 if top == -math.inf else math.exp(second - total))
        samples = a.scalars[self.weight] + b.scalars[self.weight]
        return replace(merged, scalars={**merged.scalars, self.weight: samples, "log_weight": total})


@dataclass(frozen=True)
class PerCoordinateMean(Ageless):
    """The mean of every single coordinate over those who trained it.

    `spread` turns an upload into full-sized tensors and, by the same names, masks of what was trained; without
    it, the upload brings its masks along as ``mask/NAME`` (no mask: all of it). The result has ``value/NAME`` and
    ``coverage/NAME``, the weight behind each coordinate: 0 where nobody trained.
    """

    weight: str | None = "samples"
    spread: Callable[[Packet], tuple[Mapping[str, Tensor], Mapping[str, Tensor]]] | None = None

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        weight = 1.0 if self.weight is None else _weight(up.scalars[self.weight])
        values, masks = self.spread(up) if self.spread else _own_masks(up)
        result: dict[str, Tensor] = {}
        for name, value in values.items():
            wide = _wide(value)
            mask = masks.get(name)
            if mask is not None and mask.shape != wide.shape:
                raise ValueError(f"the mask of '{name}' has shape {tuple(mask.shape)}, not {tuple(wide.shape)}")
            trained = torch.ones((), device=wide.device) if mask is None else mask.to(torch.float32)
            coverage = trained * weight
            result[f"value/{name}"] = torch.where(coverage > 0, wide, torch.zeros_like(wide))
            result[f"coverage/{name}"] = coverage
        return Packet(result, up.scalars)

    def merge(self, a: Packet, b: Packet) -> Packet:
        result: dict[str, Tensor] = {}
        for key in dict.fromkeys((*a.tensors, *b.tensors)):  # not a set, whose order hangs on the process
            if not key.startswith("value/"):
                continue
            name = key.removeprefix("value/")
            if key not in a.tensors or key not in b.tensors:
                one = a if key in a.tensors else b
                result[key], result[f"coverage/{name}"] = one.tensors[key], one.tensors[f"coverage/{name}"]
                continue
            x, y = a.tensors[key], _fitting(a.tensors[key], b.tensors[key])
            seen = b.tensors[f"coverage/{name}"]
            coverage = a.tensors[f"coverage/{name}"] + seen
            if x.is_floating_point():
                share = torch.where(coverage > 0, seen / coverage.clamp_min(1e-30), torch.zeros_like(coverage))
                result[key] = torch.lerp(x, y, share.to(x.dtype).expand_as(x))
            else:
                result[key] = torch.maximum(x, y)
            result[f"coverage/{name}"] = coverage
        return Packet(result, union(a.scalars, b.scalars, lambda x, y: x + y))


def _wide(value: Tensor) -> Tensor:
    """Half precision as float32, so that a thousand small uploads do not round each other away."""
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def _weight(value: float) -> float:
    if not 0 <= value < math.inf:
        raise ValueError(f"its weight is {value}, which is not a finite number of at least 0")
    return value


def _weighed(up: Packet, weight: float) -> tuple[dict[str, Tensor], Mapping[str, float]]:
    """The upload's entries; with no weight, zeros: they leave no trace, not even merged with others of no weight."""
    wide = {name: _wide(value) for name, value in up.tensors.items()}
    if weight:
        return wide, up.scalars
    return {name: torch.zeros_like(value) for name, value in wide.items()}, dict.fromkeys(up.scalars, 0.0)


def _same_shape(x: Tensor, y: Tensor) -> Tensor:
    if x.shape != y.shape:
        raise ValueError(f"a tensor has shape {tuple(y.shape)} where others have {tuple(x.shape)}")
    return y


def _fitting(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype != y.dtype:
        raise ValueError(f"a tensor is of {y.dtype} where others are of {x.dtype}")
    return _same_shape(x, y)


def _blend(a: Packet, b: Packet, share: float) -> Packet:
    """The mean of two packets of the same names, of which `b` counts for `share`."""
    if a.tensors.keys() != b.tensors.keys():
        odd = sorted(a.tensors.keys() ^ b.tensors.keys())
        raise ValueError(f"the tensors {', '.join(odd[:3])} are not in all uploads")
    tensors = dict(a.tensors)
    kinds: dict[bool, list[str]] = {True: [], False: []}
    for name, value in a.tensors.items():
        kinds[value.is_floating_point()].append(name)
    for averaged, names in kinds.items():
        if names:
            first = [a.tensors[name] for name in names]
            second = [_fitting(a.tensors[name], b.tensors[name]) for name in names]
            joined = torch._foreach_lerp(first, second, share) if averaged else torch._foreach_maximum(first, second)
            tensors.update(zip(names, joined))
    scalars = {k: v + share * (b.scalars[k] - v) for k, v in a.scalars.items() if _finite(v, b.scalars.get(k))}
    return Packet(tensors, scalars)


def _there(factors: Tensor, packet: Packet) -> Tensor:
    """Where the packet's tensors are. A GPU must not be waited for: there is enough that it was asked to do before."""
    device = next(iter(packet.tensors.values()), factors).device
    return factors.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else factors


def _kinds(packet: Packet) -> set[torch.dtype]:
    return {value.dtype for value in packet.tensors.values() if value.is_floating_point()}


def _mean(values: list[Tensor], shares: Mapping[torch.dtype, Tensor]) -> Tensor:
    """Of floating tensors the mean with these shares; of others the largest."""
    rows = torch.stack(values)
    if rows.dtype not in shares:
        return rows.amax(0)
    return torch.mv(rows.reshape(len(values), -1).t(), shares[rows.dtype]).view_as(values[0])


def _finite(*values: float | None) -> bool:
    return all(v is not None and math.isfinite(v) for v in values)


def _own_masks(up: Packet) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    masks = {k.removeprefix("mask/"): v for k, v in up.tensors.items() if k.startswith("mask/")}
    return {k: v for k, v in up.tensors.items() if not k.startswith("mask/")}, masks


def union(a: Mapping[str, V], b: Mapping[str, V], join: Callable[[V, V], V]) -> dict[str, V]:
    return {**a, **{k: join(a[k], v) if k in a else v for k, v in b.items()}}
