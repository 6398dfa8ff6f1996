"""Stacking: jobs of many clients as one batched computation, on a CPU or a GPU.

Jobs are begun one by one, stacked with those of the same kind, stepped together, and finished one by one. Clients
with most steps come first, so that those who are done drop out at the end of the stack and nothing is computed for
them. Whether a kind of job can be stacked is tried out once against the plain step; what cannot be stacked is done
serially and counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from undergrowth.core import Batch, Carry, InputError, LoopClient, Packet, State, Task, Updates, joined, shares
from undergrowth.core.names import FINISH
from undergrowth.engines.states import room
from undergrowth.engines.vector.agreement import close, full_precision
from undergrowth.engines.vector.carries import apart, changed, part, stacked
from undergrowth.engines.vector.ended import Ended
from undergrowth.engines.vector.layers import Stacked
from undergrowth.engines.vector.recording import Recording, Recordings, Shelf, shelves, size_for
from undergrowth.engines.vector.room import Room
from undergrowth.engines.vector.stack import Batches, Begun, brought, waves
from undergrowth.engines.world import Done, Job, Settings, World, delivered, do, failed

UNSTACKABLE = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)  # what a step may raise in a stack
WAITING = 4  # parts of stacks that may wait until a GPU has done them: those of one stack, and the last of that before


class Stacking:
    """Does jobs for a world, whose states tell what the devices have kept."""

    def __init__(self, world: World, settings: Settings) -> None:
        self.world = world
        self.settings = settings
        self.counts = {"stacked": 0.0, "not_stacked": 0.0}  # jobs of the last call
        self.cuda = torch.device(world.device).type == "cuda"
        self._kinds: dict[Hashable, int] = {}  # what clients must have in common to be stacked → a number for it
        self._stackable: dict[int, bool] = {}
        self._ended: defaultdict[str, list[tuple[Packet, State]]] = defaultdict(list)  # device → its updates so far
        self._sizes: dict[tuple[int, ...], int] = {}  # kinds of a job's updates → bytes that it brings along
        weights = 4 * sum(shape.numel() for shape in world.task.model.shapes.values())
        self._room = Room(world.device, settings.chunk, weights)
        self._recordings = Recordings(self._step, self.cuda)
        self._exact_task = world.task.with_models(lambda model: model.with_precision(False))  # to compare steps

    def done(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Done]]:
        """All jobs, as many at a time as there is room for."""
        self.counts = {"stacked": 0.0, "not_stacked": 0.0}
        self._room.look_again()
        self._recordings.begin()
        waiting: deque[Iterable[tuple[Job, Done]]] = deque()
        for wave in self._waves(jobs):
            for ended in self._wave(wave):
                # A GPU works on its own: handed on is what it has done by now, and nobody waits for it before all are
                # begun, unless too much would be held.
                waiting.append(ended)
                while waiting and (len(waiting) > WAITING or not isinstance(waiting[0], Ended) or waiting[0].there):
                    yield from waiting.popleft()
        for ended in waiting:
            yield from ended

    def _waves(self, jobs: Sequence[Job]) -> Iterator[list[tuple[Job, list[Begun]]]]:
        """Jobs that are begun together, each with its updates."""
        allowed = room(self.world.device)
        groups = [jobs]
        if self.cuda and self.settings.chunk is None:
            groups = waves(sorted(jobs, key=lambda job: self.world.shards.size(job.device)))
        for group in groups:
            with suppress(Exception):  # whose samples cannot be had says so when its job begins
                self.world.samples.bring([job.device for job in group])
            wave: list[tuple[Job, list[Begun]]] = []
            size = 0
            for job in group:
                begun = self._begin(job)
                wave.append((job, begun))
                size += self._size(begun)
                if size > allowed:
                    yield wave
                    wave, size = [], 0
            if wave:
                yield wave

    def _wave(self, wave: Sequence[tuple[Job, list[Begun]]]) -> Iterator[Iterable[tuple[Job, Done]]]:
        """Those that can be stacked with most steps first, then the others in the order they came."""
        groups: defaultdict[int, list[Begun]] = defaultdict(list)
        for _, begun in wave:
            for each in begun:
                groups[each.kind].append(each)
        stacked_up = {each.job.device for group in groups.values() for each in group}
        for kind, group in groups.items():
            group.sort(key=lambda each: -each.count)
            if not self._can_stack(kind, group):
                stacked_up.difference_update(each.job.device for each in group)
        left = Counter(each.job.device for group in groups.values() for each in group)  # updates that are not done
        for kind, group in groups.items():
            group = [each for each in group if each.job.device in stacked_up]
            for chunk, carries in self._computed(kind, group):
                yield self._finish(chunk, carries, left)
        self.counts["stacked"] += len(stacked_up)
        self.counts["not_stacked"] += len(wave) - len(stacked_up)
        states = self.world.states
        rest = [job for job, _ in wave if job.device not in stacked_up]
        if rest:
            yield ((job, do(self.world, job, states.get(job.device), states.residual(job.device))) for job in rest)

    def _begin(self, job: Job) -> list[Begun]:
        """All updates of a job; none where the client is not made of steps."""
        world, client, shard = self.world, self.world.client, None
        if not isinstance(client, LoopClient | Updates):
            return []
        own = world.states.get(job.device)
        try:
            shard = world.samples.of(job.device)
            parts = {"": client} if isinstance(client, LoopClient) else client.updates(world.task, job.down)
            begun = [
                Begun(job, name, each, shard, own, *each.begin(world.task, job.down, shard, own, job.context))
                for name, each in parts.items()
            ]
        except InputError:
            raise
        except Exception as error:
            raise failed(job, shard, error) from error
        for each in begun:
            each.kind = self._kinds.setdefault(each.signature, len(self._kinds))
        if job.limit is not None:
            for each, count in zip(begun, shares(job.limit, [each.count for each in begun])):
                each.count = count
        return begun

    def _size(self, begun: Sequence[Begun]) -> int:
        """Bytes that a job has brought along; without a state of its own, as many as others of its kind."""
        if any(each.own for each in begun):
            return brought(begun)
        kinds = tuple(each.kind for each in begun)
        if kinds not in self._sizes:
            self._sizes[kinds] = brought(begun)
        return self._sizes[kinds]

    def _steps(self, kind: int, chunk: list[Begun]) -> Iterator[tuple[list[Begun], list[Carry]]]:
        """All steps of a chunk. Clients come with their carries at the end, those who are done early before others."""
        if self._recordings.can_do(kind):
            yield from self._recorded_steps(kind, chunk)
            return
        batches = Batches(chunk, self.world.device, len(chunk))
        carry = stacked([each.carry for each in chunk])
        clients = len(chunk)
        ended: list[Carry] = []  # of the last of the chunk
        for step, active in enumerate(batches.active):
            if active < clients:
                ended = [*apart(part(carry, slice(active, clients)), clients - active), *ended]
                carry, clients = part(carry, slice(0, active)), active
            carry = self._step(carry, *batches.at(step, clients), client=chunk[0].client, clients=clients)
        yield chunk, [*apart(carry, clients), *ended]

    def _recorded_steps(self, kind: int, chunk: list[Begun]) -> Iterator[tuple[list[Begun], list[Carry]]]:
        """The same in the memory of recordings, which may have places that no client is at."""
        batches = Batches(chunk, self.world.device, size_for(len(chunk)))
        carry = stacked([each.carry for each in chunk])
        key = self._recordings.key(kind, carry)
        clients = len(chunk)
        recording: Recording | None = None
        kept: list[Shelf] = []
        for step, active in enumerate(batches.active):
            if recording is not None and active < clients:
                kept = kept or shelves(recording, clients)
                for shelf in kept:
                    shelf.put(recording, active, clients)
                while len(kept) > 1 and active <= kept[0].first:
                    border, carries = kept[0].first, kept.pop(0).carries()
                    yield chunk[border:], carries
                    chunk = chunk[:border]
            clients = active
            wanted = self._recordings.find(key, chunk[0].client, batches, carry, clients)
            if recording is None or not wanted.continues(recording):
                wanted.load(carry, clients)
            wanted.step(batches, step)
            carry, recording = wanted.carry, wanted
        assert recording is not None
        ended: list[Carry] = []
        for shelf in kept or shelves(recording, clients):
            shelf.put(recording, 0, clients)
            ended = [*shelf.carries(), *ended]
        yield chunk, ended

    def _step(
        self,
        carry: Carry,
        batch: Batch,
        mask: Tensor | None,
        client: LoopClient,
        clients: int,
        task: Task | None = None,
    ) -> Carry:
        with Stacked(clients, mask):
            return client.step(task or self.world.task, carry, batch)

    def _finish(self, chunk: list[Begun], carries: list[Carry], left: Counter[str]) -> Ended:
        """The jobs of which nothing is left to do."""
        world, jobs, done = self.world, [], []
        for each, carry in zip(chunk, carries):
            job = each.job
            if FINISH in each.carry:
                carry = {**carry, FINISH: each.carry[FINISH]}
            ended = each.client.finish(world.task, job.down, carry, each.shard, each.own, job.context)
            left[job.device] -= 1
            if isinstance(world.client, Updates):
                self._ended[job.device].append(ended)
                if left[job.device]:
                    continue
                ended = joined(each.own, self._ended.pop(job.device))
            jobs.append(job)
            done.append(delivered(world, job, *ended, world.states.residual(job.device), checked=False))
        return Ended(jobs, done)

    def _computed(self, kind: int, group: list[Begun]) -> Iterator[tuple[list[Begun], list[Carry]]]:
        """The group in pieces that fit into memory, each with its carries; one that did not fit comes in halves."""
        idle = [each for each in group if not each.count]
        if idle:
            yield idle, [each.carry for each in idle]
        rest = [each for each in group if each.count]
        while rest:
            size = min(self._room.clients(kind), len(rest))
            left = rest[:size]
            try:
                for chunk, carries in self._steps(kind, left):
                    left = left[: -len(chunk)]
                    yield chunk, carries
            except torch.cuda.OutOfMemoryError:
                self._room.halve(kind, size)
                self._recordings.clear()
                torch.cuda.empty_cache()
            rest = [*left, *rest[size:]]

    def _can_stack(self, kind: int, group: list[Begun]) -> bool:
        if kind not in self._stackable:
            some = [each for each in group if each.count][:2]
            if not some:
                return False
            if len(some) == 1:
                some.append(some[0].altered)
            with full_precision():
                self._stackable[kind] = self._agrees(kind, some)
        return self._stackable[kind]

    def _agrees(self, kind: int, some: list[Begun]) -> bool:
        """Whether one step of some clients gives the same stacked and apart.

        In double precision where that can be had: else a last digit could decide, and a resumed run decide otherwise.
        """
        with suppress(*UNSTACKABLE):
            self._look(kind, some)
            for number in (torch.float64, torch.float32):
                with suppress(*UNSTACKABLE):
                    return self._agree_in(number, some)
        return False

    def _look(self, kind: int, some: list[Begun]) -> None:
        """Does a step on a GPU as it will be done: what memory it takes, and what it changes."""
        if self._recordings.cuda:
            batch, mask = Batches(some, self.world.device, len(some)).at(0, len(some))
            before = stacked([each.carry for each in some])
            self._room.begin()
            after = self._step(before, batch, mask, client=some[0].client, clients=len(some), task=self._exact_task)
            self._room.measure(kind, len(some))
            self._recordings.learn(kind, before, after)

    def _agree_in(self, number: torch.dtype, some: list[Begun]) -> bool:
        def as_number(value: Tensor) -> Tensor:
            return value.to(number) if value.dtype == torch.float32 else value

        client, task = some[0].client, self._exact_task
        carries = [changed(each.carry, as_number) for each in some]
        batch, mask = changed(Batches(some, self.world.device, len(some)).at(0, len(some)), as_number)
        together = self._step(stacked(carries), batch, mask, client=client, clients=len(some), task=task)
        for place, (each, carry) in enumerate(zip(some, carries)):
            alone = client.step(task, carry, changed(next(iter(each.steps)), as_number))
            if not all(close(part(together[key], place), alone[key], carry.get(key)) for key in together):
                return False
        return True
