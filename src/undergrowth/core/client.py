"""Client: what a device does with what it is sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from undergrowth.core.context import Context
from undergrowth.core.packet import Packet
from undergrowth.core.pytree import State
from undergrowth.core.shard import Shard
from undergrowth.core.task import Task

Batch = Mapping[str, Tensor]
Carry = dict[str, Any]


@runtime_checkable
class Client(Protocol):
    def local(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Packet, State]:
        """One job: returns the upload and the device's own state, which stays with the device."""
        ...


@dataclass(frozen=True)
class Steps:
    """The batches of a job: the data, and for each epoch the order in which to go through (some of) it."""

    data: Mapping[str, Tensor]
    epochs: tuple[Tensor, ...]
    batch: int

    def __len__(self) -> int:
        # Not len(order): for a tensor that takes ten times as long.
        return sum(-(-order.shape[0] // self.batch) for order in self.epochs)

    def __iter__(self) -> Iterator[Batch]:
        for order in self.epochs:
            # One gather for the epoch and views for its batches: cheaper than a gather for every batch.
            data = {name: values[order.to(values.device)] for name, values in self.data.items()}
            for start in range(0, len(order), self.batch):
                yield {name: values[start : start + self.batch] for name, values in data.items()}


class LoopClient:
    """A client written as begin, many steps, finish: the form that every engine can batch and price.

    All randomness and the order of the data are settled in `begin`. `step` is pure: the same carry and batch
    give the same result, and neither is changed; except that a step may take the memory of a carry that a step made,
    since nobody looks at that one again. What only `finish` needs goes into ``carry["finish"]``.
    """

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        raise NotImplementedError("a LoopClient defines begin, step and finish")

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        raise NotImplementedError("a LoopClient defines begin, step and finish")

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        raise NotImplementedError("a LoopClient defines begin, step and finish")

    def local(
        self, task: Task, down: Packet, shard: Shard, own: State, context: Context, limit: int | None = None
    ) -> tuple[Packet, State]:
        """`limit`: steps after which it stops, to send what it has by then."""
        carry, steps = self.begin(task, down, shard, own, context)
        context.seed_torch(shard.x.device)
        for batch in islice(steps, limit):
            carry = self.step(task, carry, batch)
        return self.finish(task, down, carry, shard, own, context)


class Updates:
    """A client whose job is several updates, none of which needs what another makes of the packet.

    Which updates there are may hang on the names and tags in the packet, not on its numbers. One name stands for one
    way to step, whatever the packet. Engines batch and price every update by itself.
    """

    def updates(self, task: Task, down: Packet) -> Mapping[str, LoopClient]:
        """The updates that this packet asks for, by name. Each gets all that a client gets."""
        raise NotImplementedError("a client with several updates defines updates")

    def local(
        self, task: Task, down: Packet, shard: Shard, own: State, context: Context, limit: int | None = None
    ) -> tuple[Packet, State]:
        """One update after the other. With `limit`, each does its share of so many steps."""
        clients = self.updates(task, down).values()
        counts = () if limit is None else [len(c.begin(task, down, shard, own, context)[1]) for c in clients]
        limits = shares(limit, counts) if limit is not None else [None] * len(clients)
        return joined(own, [c.local(task, down, shard, own, context, most) for c, most in zip(clients, limits)])


def joined(own: State, done: Iterable[tuple[Packet, State]]) -> tuple[Packet, State]:
    """One upload and one state of what several updates sent and kept. No two may send or change the same name."""
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, float] = {}
    tags: dict[str, str] = {}
    kept = own
    for up, state in done:
        tensors.update(up.tensors)
        scalars.update(up.scalars)
        tags.update(up.tags)
        changed = {name: value for name, value in state.items() if value is not own.get(name)}
        kept = {**kept, **changed} if changed else kept
    return Packet(tensors, scalars, tags), kept


def shares(limit: int, counts: Sequence[int]) -> list[int]:
    """How many of `limit` steps each of several updates does: in proportion, and one at least where it has any."""
    everything = max(1, sum(counts))
    return [min(count, max(min(limit, 1), limit * count // everything)) for count in counts]
