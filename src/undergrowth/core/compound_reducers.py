"""Reducers that keep uploads, groups or parts of uploads separate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from undergrowth.core.packet import Packet
from undergrowth.core.reducers import Reducer, union


@dataclass(frozen=True)
class Collect(Reducer):
    """Keeps every upload separate: ``partial.parts()`` returns them by sender. Each gets its `age` as a scalar.

    A second upload of a sender, which an asynchronous server may receive in one round, has the name ``SENDER+``.
    `by_path`: uploads that a node passes on stay under its name, ``edge/device``, so that a parent knows the way.
    """

    by_path: bool = False

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        return Packet.join({sender: replace(up, scalars={**up.scalars, "age": float(age)})})

    def merge(self, a: Packet, b: Packet) -> Packet:
        if not a.scalars.keys().isdisjoint(b.scalars):
            b = _with_new_names(b, a)
        # Sorted, so that the result does not depend on the order of the uploads.
        return Packet(*(dict(sorted({**x, **y}.items())) for x, y in zip(_entries(a), _entries(b), strict=True)))  # type: ignore[arg-type]

    def relay(self, sender: str, partial: Packet, age: int) -> Packet:
        if self.by_path:
            return Packet.join({sender: partial})
        older = {k: v + age if k.endswith("/age") and k.count("/") == 1 else v for k, v in partial.scalars.items()}
        return replace(partial, scalars=older)


@dataclass(frozen=True)
class Grouped(Reducer):
    """Reduces each group separately, by the upload's tag `by`: ``partial.parts()`` has one result per group."""

    by: str
    inner: Reducer

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        group = up.tags[self.by]
        if "/" in group:
            raise ValueError(f"its group '{group}' has a slash, which separates the parts of a packet")
        return Packet.join({group: self.inner.lift(sender, up, age)})

    def merge(self, a: Packet, b: Packet) -> Packet:
        return Packet.join(union(a.parts(), b.parts(), self.inner.merge))

    def relay(self, sender: str, partial: Packet, age: int) -> Packet:
        return Packet.join({group: self.inner.relay(sender, part, age) for group, part in partial.parts().items()})


@dataclass(frozen=True)
class Named(Reducer):
    """Reduces each part of an upload in its own way: ``Named({"model": WeightedMean(), "maps": Collect()})``.

    Every part sees the scalars and tags without a prefix. A part that no upload has is absent from the result.
    """

    reducers: Mapping[str, Reducer]

    @property
    def summable(self) -> bool:
        return all(reducer.summable for reducer in self.reducers.values())

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        scalars = {k: v for k, v in up.scalars.items() if "/" not in k}
        tags = {k: v for k, v in up.tags.items() if "/" not in k}
        lifted = {}
        loose = next((name for name in up.tensors if "/" not in name), None)
        if loose is not None:
            raise ValueError(f"'{loose}' is in no part, and the method reduces {', '.join(self.reducers)}")
        for name, part in up.parts().items():
            if name not in self.reducers:
                raise ValueError(f"it has a part '{name}', and the method reduces {', '.join(self.reducers)}")
            shown = Packet(part.tensors, {**scalars, **part.scalars}, {**tags, **part.tags})
            lifted[name] = self.reducers[name].lift(sender, shown, age)
        return Packet.join(lifted)

    def merge(self, a: Packet, b: Packet) -> Packet:
        first, second = a.parts(), b.parts()
        both = {name: self.reducers[name].merge(first[name], second[name]) for name in first.keys() & second.keys()}
        return Packet.join(dict(sorted({**first, **second, **both}.items())))

    def relay(self, sender: str, partial: Packet, age: int) -> Packet:
        return self._each(partial, lambda name, part: self.reducers[name].relay(sender, part, age))

    def to_sum(self, partial: Packet) -> Packet:
        return self._each(partial, lambda name, part: self.reducers[name].to_sum(part))

    def from_sum(self, total: Packet, like: Packet) -> Packet:
        types = like.parts()
        return self._each(total, lambda name, part: self.reducers[name].from_sum(part, types[name]))

    def _each(self, packet: Packet, change: Callable[[str, Packet], Packet]) -> Packet:
        return Packet.join({name: change(name, part) for name, part in packet.parts().items()})


def _with_new_names(packet: Packet, others: Packet) -> Packet:
    """The parts of `packet`, under names that `others` does not have."""
    taken, parts = set(others.parts()), {}
    for name, part in packet.parts().items():
        while name in taken:
            name += "+"
        taken.add(name)
        parts[name] = part
    return Packet.join(parts)


def _entries(packet: Packet) -> Iterable[Mapping[str, object]]:
    return packet.tensors, packet.scalars, packet.tags
