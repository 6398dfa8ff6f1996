"""Client: the rule that a device follows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from undergrowth.core.augmentation import Augmentation
from undergrowth.core.context import Context
from undergrowth.core.dropout import NUMBER_OF_KEYS
from undergrowth.core.model import Model
from undergrowth.core.names import AUGMENT, KEYS, STEPS_DONE
from undergrowth.core.packet import Packet
from undergrowth.core.pytree import State
from undergrowth.core.shard import Shard
from undergrowth.core.task import Task

Batch = Mapping[str, Tensor]
Carry = dict[str, Any]


@runtime_checkable
class Client(Protocol):
    """The rule that a device follows."""

    def local(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Packet, State]:
        """Do one job: return the upload, and the device's next own state, which stays on the device."""
        ...


@dataclass(frozen=True)
class Steps:
    """The batches of a job: the samples, and for each epoch the positions of the samples to visit, in order.

    visits: values that belong to a visit and not to a sample; by name, one tensor per epoch with a row per visit.
    """

    data: Mapping[str, Tensor]
    epochs: tuple[Tensor, ...]
    batch: int
    visits: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        # shape[0] instead of len(): ten times as fast for a tensor.
        return sum(-(-order.shape[0] // self.batch) for order in self.epochs)

    def __iter__(self) -> Iterator[Batch]:
        torch_device = next(iter(self.data.values())).device
        for number, order in enumerate(self.epochs):
            # One gather per epoch and views for its batches is cheaper than one gather per batch.
            data = {name: values[order.to(values.device)] for name, values in self.data.items()}
            data |= {name: values[number].to(torch_device) for name, values in self.visits.items()}
            for start in range(0, len(order), self.batch):
                yield {name: values[start : start + self.batch] for name, values in data.items()}

    def cut(self, lengths: Sequence[int]) -> Steps:
        """The first visits of every epoch, as many as `lengths` says. Epochs without a length are left out."""

        def first(epochs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(rows[:length] for rows, length in zip(epochs, lengths, strict=False))

        visits = {name: first(each) for name, each in self.visits.items()}
        return replace(self, epochs=first(self.epochs), visits=visits)

    def augmented(self, augmentation: Augmentation | None, context: Context) -> Steps:
        """The same steps with the random choices of `augmentation`, if there is one, for every visit of a sample."""
        if augmentation is None:
            return self
        generator = context.generator(AUGMENT)
        draws = tuple(augmentation.draw(len(order), generator) for order in self.epochs)
        return replace(self, visits={**self.visits, AUGMENT: draws})

    def keyed(self, model: Model, context: Context) -> Steps:
        """The same steps with a random key for every visit of a sample, if `model` has layers of `KeyedDropout`."""
        if not model.has_dropout:
            return self
        generator = context.generator(KEYS)
        keys = tuple(
            torch.randint(NUMBER_OF_KEYS, (len(order),), dtype=torch.int32, generator=generator)
            for order in self.epochs
        )
        return replace(self, visits={**self.visits, KEYS: keys})


class LoopClient:
    """A client written as `begin`, many `step`s and `finish`: the form that every engine can batch and price.

    `begin` makes all random choices and fixes the order of the data. `step` is pure: the same carry and batch give
    the same result, and neither is modified. One exception: a step may reuse the memory of a carry that an earlier
    step returned, because nothing else reads it. Values that only `finish` needs go into ``carry["finish"]``, and
    `finish` finds the number of steps that were done in ``carry["steps done"]``.

    `before_steps` and `after_steps` are for work that is the same for every device, such as a pass over its samples:
    they get as many jobs at once as the engine has, and `run_loops` computes their loops together.
    """

    @property
    def ignored_settings(self) -> frozenset[str]:
        """Settings of an experiment that this client does not use, such as "train.epochs"."""
        return frozenset()

    def on_device(self) -> LoopClient:
        """The client of a device whose memory no other device shares: it may change its model in place.

        The work that is priced is that of this client. In a simulation, devices share tensors.
        """
        return self

    def for_price(self) -> LoopClient:
        """The client to price, if values decide how much a device sends: one that sends all.

        A price is counted on tensors without values, or of zeros.
        """
        return self

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        raise NotImplementedError("a LoopClient defines begin, step and finish")

    def before_steps(self, task: Task, loops: Sequence[Loop]) -> list[Carry]:
        """The carries with which the steps of several jobs start. The carries in `loops` are those of `begin`."""
        return [loop.carry for loop in loops]

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        raise NotImplementedError("a LoopClient defines begin, step and finish")

    def after_steps(self, task: Task, loops: Sequence[Loop]) -> list[Carry]:
        """The carries that `finish` gets, of several jobs. The carries in `loops` are those of the last step."""
        return [loop.carry for loop in loops]

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        raise NotImplementedError("a LoopClient defines begin, step and finish")

    def samples_after_steps(self, size: int) -> int:
        """How many of `size` samples `after_steps` and `finish` compute with. Their price is linear in this number."""
        return size

    def local(
        self, task: Task, down: Packet, shard: Shard, own: State, context: Context, limit: int | None = None
    ) -> tuple[Packet, State]:
        """Do one job. `limit`: the number of steps after which training stops; the upload is made from there."""
        loop = Loop(self, down, shard, *self.begin(task, down, shard, own, context), context)
        (carry,) = self.before_steps(task, [loop])
        context.seed_torch(shard.x.device)
        done = 0
        for batch in islice(loop.steps, limit):
            carry = self.step(task, carry, batch)
            done += 1
        (carry,) = self.after_steps(task, [loop._replace(carry={**carry, STEPS_DONE: done})])
        return self.finish(task, down, carry, shard, own, context)


class Loop(NamedTuple):
    """The steps of a `LoopClient` between `begin` and `finish`."""

    client: LoopClient
    down: Packet
    shard: Shard
    carry: Carry
    steps: Steps
    context: Context


def run_loops(task: Task, loops: Sequence[Loop]) -> list[Carry]:
    """The carry of each loop after its last step. The engine may compute loops of the same kind together."""
    return (task.run_loops or run_one_by_one)(task, loops)


def run_one_by_one(task: Task, loops: Sequence[Loop]) -> list[Carry]:
    """The carry of each loop after its last step."""
    carries = []
    for loop in loops:
        carry = loop.carry
        loop.context.seed_torch(loop.shard.x.device)
        for batch in loop.steps:
            carry = loop.client.step(task, carry, batch)
        carries.append(carry)
    return carries


class Updates:
    """A client whose job consists of several updates that do not depend on each other's results.

    The set of updates may depend on the names and tags of the packet, but not on its numbers. An update of one name
    always steps in the same way. Engines batch and price each update separately.
    """

    def updates(self, task: Task, down: Packet) -> Mapping[str, LoopClient]:
        """The updates that this packet asks for, by name. Each is called with all arguments of a client."""
        raise NotImplementedError("a client with several updates defines updates")

    def local(
        self, task: Task, down: Packet, shard: Shard, own: State, context: Context, limit: int | None = None
    ) -> tuple[Packet, State]:
        """Do one update after the other. `limit`: steps of all updates together, see `split_limit`."""
        clients = self.updates(task, down).values()
        limits: Sequence[int | None] = [None] * len(clients)
        if limit is not None:
            limits = split_limit(limit, [len(each.begin(task, down, shard, own, context)[1]) for each in clients])
        jobs = zip(clients, limits, strict=True)
        return join_updates(own, [client.local(task, down, shard, own, context, most) for client, most in jobs])


def join_updates(own: State, done: Iterable[tuple[Packet, State]]) -> tuple[Packet, State]:
    """One upload and one state from those of several updates. No two may send or change the same name."""
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


def split_limit(limit: int, counts: Sequence[int]) -> list[int]:
    """`limit` steps divided over several updates in proportion to `counts`; at least one for an update that has any."""
    total = max(1, sum(counts))
    return [min(count, max(min(limit, 1), limit * count // total)) for count in counts]
