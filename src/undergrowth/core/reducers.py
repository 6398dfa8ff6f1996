"""Reducers: how uploads are combined, so that any worker, edge server or engine may combine some of them first.

Each is a commutative monoid up to float error. `lift` turns one upload into a partial result and `merge` joins two
partial results; a partial result is a packet and travels like one. Means are kept as running means (the mean so far
and its weight): nothing overflows, whatever the weights, and the mean of one upload is that upload bit for bit. A
reducer that is `summable` can also present a partial result as plain sums, which secure aggregation adds up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from undergrowth.core.names import SAMPLES
from undergrowth.core.packet import Packet

V = TypeVar("V")


class Reducer:
    """The base of all reducers."""

    @property
    def summable(self) -> bool:
        """Whether `to_sum` and `from_sum` work: the result is a quotient of sums over uploads."""
        return False

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        """One upload as a partial result. `age`: server versions since the sender was asked."""
        raise NotImplementedError("a reducer defines lift")

    def merge(self, a: Packet, b: Packet) -> Packet:
        """One partial result of two."""
        raise NotImplementedError("a reducer defines merge")

    def relay(self, sender: str, partial: Packet, age: int) -> Packet:
        """The partial result of the node `sender`, as its parent merges it. `age`: as in `lift`."""
        return partial

    def to_sum(self, partial: Packet) -> Packet:
        """The same partial result as sums (Σ weight·value and Σ weight), to be added entry by entry."""
        raise TypeError(f"{type(self).__name__} cannot be summed")

    def from_sum(self, total: Packet, like: Packet) -> Packet:
        """The partial result whose sums were added up to `total`. `like`: any upload, for the types of its tensors."""
        raise TypeError(f"{type(self).__name__} cannot be summed")


def add_upload(reducer: Reducer, partial: Packet | None, sender: str, up: Packet, age: int = 0) -> Packet:
    """`partial` with one more upload."""
    one = reducer.lift(sender, up, age)
    return one if partial is None else reducer.merge(partial, one)


def describe_misfit(error: ValueError | KeyError) -> str:
    """Why a reducer could not use an upload, in words."""
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)


def undiscounted(age: int) -> float:
    """The weight of an upload of any age where age does not matter."""
    return 1.0


@dataclass(frozen=True)
class Sum(Reducer):
    """Adds tensors and scalars by name. A name that a sender left out counts as zero."""

    @property
    def summable(self) -> bool:
        return True

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        return Packet({k: _wide(v) for k, v in up.tensors.items()}, up.scalars)

    def merge(self, a: Packet, b: Packet) -> Packet:
        tensors = union(a.tensors, b.tensors, lambda x, y: x + _same_shape(x, y))
        return Packet(tensors, union(a.scalars, b.scalars, lambda x, y: x + y))

    def to_sum(self, partial: Packet) -> Packet:
        return partial

    def from_sum(self, total: Packet, like: Packet) -> Packet:
        return Packet({k: _typed_like(v, like.tensors[k]) for k, v in total.tensors.items()}, total.scalars)


@dataclass(frozen=True)
class WeightedMean(Reducer):
    """The mean of all uploads, weighted by the scalar `weight` (None: equal weights) times discount(age).

    In the result, the scalar `weight` is the total weight and every other scalar a weighted mean. Integer tensors, such
    as BatchNorm's counters, are not averaged: the result has their maximum (as a sum: their rounded mean).
    only_trained: uploads with the scalar `samples` 0 have the weight 0, also among equal weights.
    """

    weight: str | None = "samples"
    discount: Callable[[int], float] = undiscounted
    only_trained: bool = False

    @property
    def summable(self) -> bool:
        return True

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        counts = not self.only_trained or up.scalars[SAMPLES] > 0
        weight = _weight((float(counts) if self.weight is None else up.scalars[self.weight]) * self.discount(age))
        tensors, scalars = _weighed(up, weight)
        return Packet(tensors, {**scalars, self._total: weight})

    def merge(self, a: Packet, b: Packet) -> Packet:
        weight = a.scalars[self._total] + b.scalars[self._total]
        merged = _blend(a, b, b.scalars[self._total] / weight if weight else 0.0)
        return replace(merged, scalars={**merged.scalars, self._total: weight})

    def merge_all(self, parts: Sequence[Packet]) -> Packet:
        """Merges many partial results of the same form in one pass: on a GPU one kernel instead of one for each."""
        weights = [part.scalars[self._total] for part in parts]
        total = sum(weights)
        fractions = [weight / total for weight in weights] if total else [1.0] + [0.0] * (len(parts) - 1)
        columns = {name: [part.tensors[name] for part in parts] for name in parts[0].tensors}
        known = [k for k in parts[0].scalars if _finite(*(part.scalars.get(k) for part in parts))]
        pairs = list(zip(fractions, parts, strict=True))
        scalars = {k: math.fsum(fraction * part.scalars[k] for fraction, part in pairs) for k in known}
        kinds = {value.dtype for value in parts[0].tensors.values() if value.is_floating_point()}
        factors = {kind: _beside(torch.tensor(fractions, dtype=kind), parts[0]) for kind in kinds}
        tensors = {name: _mean(values, factors) for name, values in columns.items()}
        return Packet(tensors, {**scalars, self._total: total})

    def relay(self, sender: str, partial: Packet, age: int) -> Packet:
        # Exact: uploads that a node combines within one of its own versions have age 0 there.
        weight = partial.scalars[self._total] * self.discount(age)
        return replace(partial, scalars={**partial.scalars, self._total: weight})

    def to_sum(self, partial: Packet) -> Packet:
        weight = partial.scalars[self._total]
        scalars = {k: v if k == self._total else weight * v for k, v in partial.scalars.items()}
        return Packet({k: _summand(v, weight) for k, v in partial.tensors.items()}, scalars)

    def from_sum(self, total: Packet, like: Packet) -> Packet:
        weight = total.scalars[self._total]
        divisor = weight or 1.0
        scalars = {k: v if k == self._total else v / divisor for k, v in total.scalars.items()}
        return Packet({k: _typed_like(v / divisor, like.tensors[k]) for k, v in total.tensors.items()}, scalars)

    @property
    def _total(self) -> str:
        return self.weight or "uploads"


@dataclass(frozen=True)
class TiltedMean(Reducer):
    """A mean with weights weight·exp(t·loss): t > 0 favours devices with a high loss, t = 0 is `WeightedMean`.

    The scalar `weight` is that of `WeightedMean`; None: equal weights. A partial result has the mean of its own
    uploads with these weights, of scalars too, the sum of `weight`, and as `log_weight` the logarithm of the sum of
    weight·exp(t·loss), so a loss of 100 with t = 5 does not overflow. Two partial results are merged in the ratio of
    these sums: every upload has the same weight, however uploads were combined before.
    """

    t: float
    loss: str = "loss"
    weight: str | None = "samples"

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        weight = 1.0 if self.weight is None else _weight(up.scalars[self.weight])
        log_weight = math.log(weight) + self.t * up.scalars[self.loss] if weight else -math.inf
        tensors, scalars = _weighed(up, weight)
        return Packet(tensors, {**scalars, self._total: weight, "log_weight": log_weight})

    def merge(self, a: Packet, b: Packet) -> Packet:
        first, second = a.scalars["log_weight"], b.scalars["log_weight"]
        top = max(first, second)
        total = top if top == -math.inf else top + math.log(math.exp(first - top) + math.exp(second - top))
        merged = _blend(a, b, 0.0 if top == -math.inf else math.exp(second - total))
        weight = a.scalars[self._total] + b.scalars[self._total]
        return replace(merged, scalars={**merged.scalars, self._total: weight, "log_weight": total})

    @property
    def _total(self) -> str:
        return self.weight or "uploads"


@dataclass(frozen=True)
class PerCoordinateMean(Reducer):
    """The mean of each coordinate over the uploads that trained it.

    An upload brings its masks of the trained coordinates as ``mask/NAME`` (no mask: all coordinates). The result has
    ``value/NAME`` and ``coverage/NAME``, the weight behind each coordinate: 0 if no upload trained it.
    """

    weight: str | None = "samples"

    @property
    def summable(self) -> bool:
        return True

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        weight = 1.0 if self.weight is None else _weight(up.scalars[self.weight])
        values, masks = _own_masks(up)
        result: dict[str, Tensor] = {}
        for name, value in values.items():
            wide = _wide(value)
            mask = masks.get(name)
            if mask is not None and mask.shape != wide.shape:
                raise ValueError(f"the mask of '{name}' has shape {tuple(mask.shape)}, not {tuple(wide.shape)}")
            kind = wide.dtype if wide.is_floating_point() else torch.float32
            trained = torch.ones((), dtype=kind, device=wide.device) if mask is None else mask.to(kind)
            coverage = trained * weight
            result[f"value/{name}"] = torch.where(coverage > 0, wide, torch.zeros_like(wide))
            result[f"coverage/{name}"] = coverage
        return Packet(result, up.scalars)

    def merge(self, a: Packet, b: Packet) -> Packet:
        result: dict[str, Tensor] = {}
        for key in dict.fromkeys((*a.tensors, *b.tensors)):  # a set would have another order in every process
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
                fraction = torch.where(coverage > 0, seen / coverage.clamp_min(1e-30), torch.zeros_like(coverage))
                result[key] = torch.lerp(x, y, fraction.to(x.dtype).expand_as(x))
            else:
                result[key] = torch.maximum(x, y)
            result[f"coverage/{name}"] = coverage
        return Packet(result, union(a.scalars, b.scalars, lambda x, y: x + y))

    def to_sum(self, partial: Packet) -> Packet:
        sums: dict[str, Tensor] = {}
        for key, coverage in partial.tensors.items():
            if key.startswith("coverage/"):
                value = partial.tensors[f"value/{key.removeprefix('coverage/')}"]
                sums[key] = coverage.expand_as(value)  # that of an upload without a mask is one number
                sums[f"value/{key.removeprefix('coverage/')}"] = _summand(value, coverage)
        return replace(partial, tensors=sums)

    def from_sum(self, total: Packet, like: Packet) -> Packet:
        tensors = dict(total.tensors)
        for name, value in _own_masks(like)[0].items():
            coverage = total.tensors[f"coverage/{name}"]
            mean = total.tensors[f"value/{name}"] / torch.where(coverage > 0, coverage, 1.0)
            tensors[f"value/{name}"] = _typed_like(mean, value)
        return replace(total, tensors=tensors)


def _wide(value: Tensor) -> Tensor:
    """Half precision as float32, so that a thousand small uploads do not round each other away."""
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def _weight(value: float) -> float:
    if not 0 <= value < math.inf:
        raise ValueError(f"its weight is {value}, which is not a finite number of at least 0")
    return value


def _weighed(up: Packet, weight: float) -> tuple[dict[str, Tensor], Mapping[str, float]]:
    """The upload's entries, or zeros if its weight is 0: they leave no trace, even among uploads of weight 0."""
    wide = {name: _wide(value) for name, value in up.tensors.items()}
    if weight:
        return wide, up.scalars
    return {name: torch.zeros_like(value) for name, value in wide.items()}, dict.fromkeys(up.scalars, 0.0)


def _summand(value: Tensor, weight: float | Tensor) -> Tensor:
    return (value if value.is_floating_point() else value.double()) * weight


def _typed_like(value: Tensor, like: Tensor) -> Tensor:
    if like.is_floating_point():
        return value if value.is_floating_point() else value.to(like.dtype)
    return value.round().to(like.dtype) if value.is_floating_point() else value


def _same_shape(x: Tensor, y: Tensor) -> Tensor:
    if x.shape != y.shape:
        raise ValueError(f"a tensor has shape {tuple(y.shape)} where others have {tuple(x.shape)}")
    return y


def _fitting(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype != y.dtype:
        raise ValueError(f"a tensor is of {y.dtype} where others are of {x.dtype}")
    return _same_shape(x, y)


def _blend(a: Packet, b: Packet, fraction: float) -> Packet:
    """The mean of two packets with the same names, in which `b` has the weight `fraction` and `a` the rest."""
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
            joined = torch._foreach_lerp(first, second, fraction) if averaged else torch._foreach_maximum(first, second)
            tensors.update(zip(names, joined, strict=True))
    scalars = {k: v + fraction * (b.scalars[k] - v) for k, v in a.scalars.items() if _finite(v, b.scalars.get(k))}
    return Packet(tensors, scalars)


def _beside(factors: Tensor, packet: Packet) -> Tensor:
    """`factors` on the torch device of the packet's tensors, without waiting for a GPU."""
    torch_device = next(iter(packet.tensors.values()), factors).device
    return factors.pin_memory().to(torch_device, non_blocking=True) if torch_device.type == "cuda" else factors


def _mean(values: list[Tensor], fractions: Mapping[torch.dtype, Tensor]) -> Tensor:
    """The weighted mean of floating-point tensors; the maximum of others."""
    rows = torch.stack(values)
    if rows.dtype not in fractions:
        return rows.amax(0)
    return torch.mv(rows.reshape(len(values), -1).t(), fractions[rows.dtype]).view_as(values[0])


def _finite(*values: float | None) -> bool:
    return all(v is not None and math.isfinite(v) for v in values)


def _own_masks(up: Packet) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    masks = {k.removeprefix("mask/"): v for k, v in up.tensors.items() if k.startswith("mask/")}
    return {k: v for k, v in up.tensors.items() if not k.startswith("mask/")}, masks


def union(a: Mapping[str, V], b: Mapping[str, V], join: Callable[[V, V], V]) -> dict[str, V]:
    """The entries of both; `join(x, y)` where both have one of the same name."""
    return {**a, **{k: join(a[k], v) if k in a else v for k, v in b.items()}}
