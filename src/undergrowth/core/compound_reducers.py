"""Reducers that keep uploads, groups or parts of uploads apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from undergrowth.core.packet import Packet
from undergrowth.core.reducers import Reducer, union


@dataclass(frozen=True)
class Collect:
    """Keeps every upload apart: ``total.parts()`` gives them back by sender. Each gets its `age` as a scalar."""

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        return Packet.join({sender: replace(up, scalars={**up.scalars, "age": float(age)})})

    def merge(self, a: Packet, b: Packet) -> Packet:
        # Sorted, so that the result does not tell in which order the uploads came.
        return Packet(*(dict(sorted({**x, **y}.items())) for x, y in zip(_entries(a), _entries(b))))  # type: ignore[arg-type]

    def aged(self, total: Packet, age: int) -> Packet:
        older = {k: v + age if k.endswith("/age") and k.count("/") == 1 else v for k, v in total.scalars.items()}
        return replace(total, scalars=older)


@dataclass(frozen=True)
class Grouped:
    """Reduces each group on its own, by the upload's tag `by`: ``total.parts()`` gives a result per group."""

    by: str
    inner: Reducer

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        group = up.tags[self.by]
        if "/" in group:
            raise ValueError(f"its group '{group}' has a slash, which parts the names of a packet")
        return Packet.join({group: self.inner.lift(sender, up, age)})

    def merge(self, a: Packet, b: Packet) -> Packet:
        return Packet.join(union(a.parts(), b.parts(), self.inner.merge))

    def aged(self, total: Packet, age: int) -> Packet:
        return Packet.join({group: self.inner.aged(part, age) for group, part in total.parts().items()})


@dataclass(frozen=True)
class Named:
    """Reduces each part of an upload in its own way: ``Named({"model": WeightedMean(), "maps": Collect()})``.

    Scalars and tags without a prefix are shown to every part. A part that nobody sent is absent from the result.
    """

    reducers: Mapping[str, Reducer]

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        scalars = {k: v for k, v in up.scalars.items() if "/" not in k}
        tags = {k: v for k, v in up.tags.items() if "/" not in k}
        lifted = {}
        for name, part in up.parts().items():
            if name not in self.reducers:
                raise ValueError(f"it has a part '{name}', and the method reduces {', '.join(self.reducers)}")
            shown = Packet(part.tensors, {**scalars, **part.scalars}, {**tags, **part.tags})
            lifted[name] = self.reducers[name].lift(sender, shown, age)
        return Packet.join(lifted)

    def merge(self, a: Packet, b: Packet) -> Packet:
        first, second = a.parts(), b.parts()
        merged = {}
        for name in sorted(first.keys() | second.keys()):
            both = name in first and name in second
            merged[name] = (
                self.reducers[name].merge(first[name], second[name]) if both else first.get(name) or second[name]
            )
        return Packet.join(merged)

    def aged(self, total: Packet, age: int) -> Packet:
        return Packet.join({name: self.reducers[name].aged(part, age) for name, part in total.parts().items()})


def _entries(packet: Packet) -> Iterable[Mapping[str, object]]:
    return packet.tensors, packet.scalars, packet.tags
