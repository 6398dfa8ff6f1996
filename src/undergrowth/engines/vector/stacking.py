"""Stacking: jobs of many clients as one batched computation, on a CPU or a GPU.

Jobs are begun one by one, stacked with those of the same kind, stepped together, and finished one by one. Clients
with most steps come first, so that those who are done drop out at the end of the stack and nothing is computed for
them. Whether a kind of job can be stacked is tried out once against the plain step; what cannot be stacked is done
serially and counted.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from undergrowth.core import Batch, Carry, InputError, LoopClient, Packet, RunError, State, Updates, joined, shares
from undergrowth.engines.states import room
from undergrowth.engines.vector.agreement import close, full_precision
from undergrowth.engines.vector.ended import Ended
from undergrowth.engines.vector.layers import Stacked
from undergrowth.engines.vector.recording import Recording, Unrecordable, size_for
from undergrowth.engines.vector.stack import (
    FINISH,
    LARGEST_CHUNK,
    Batches,
    Begun,
    brought,
    moved_out,
    part,
    stacked,
    waves,
    wider,
)
from undergrowth.engines.world import Done, Job, Settings, World, delivered, do, failed

CPU_BYTES = 8 << 20  # of weights that are stacked on a CPU; more do not stay in its caches
CPU_CHUNK = (4, 16)  # clients at least and at most, whatever the weights
FIRST_CHUNK = 24  # clients on a GPU whose memory is measured before more are taken
MEMORY_SHARE = 0.4  # of what is free on the GPU: a recording needs as much again
UNRECORDED = 12  # steps of a kind after which one is recorded, which takes as long as some dozen


class Stacking:
    """Does jobs for a world, whose states tell what the devices have kept."""

    def __init__(self, world: World, settings: Settings) -> None:
        self.world = world
        self.settings = settings
        self.counts = {"stacked": 0.0, "not_stacked": 0.0}  # jobs of the last call
        self.cuda = torch.device(world.device).type == "cuda"
        self._stackable: dict[Hashable, bool] = {}
        self._ended: defaultdict[str, list[tuple[Packet, State]]] = defaultdict(list)  # device → its updates so far
        self._bytes: dict[Hashable, float] = {}  # kind → bytes of one client on the GPU
        self._sizes: dict[Hashable, int] = {}  # kinds of a job's updates → bytes that it brings along
        self._unrecorded: Counter[Hashable] = Counter()  # kind → steps that were done without a recording
        self._recordings: dict[Hashable, dict[int, Recording]] = {}  # kind → clients → recording
        self._unrecordable: set[Hashable] = set()
        self._most: dict[Hashable, int] = {}  # kind → clients at once, where more did not fit
        self._pool = torch.cuda.graph_pool_handle() if self.cuda else None
        self._before = 0  # bytes on the GPU before this chunk
        self._weights: int = 4 * sum(shape.numel() for shape in world.task.model.shapes.values())

    def done(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Done]]:
        """All jobs, as many at a time as there is room for."""
        self.counts = {"stacked": 0.0, "not_stacked": 0.0}
        waiting: deque[Iterable[tuple[Job, Done]]] = deque()
        for wave in self._waves(jobs):
            for ended in self._wave(wave):
                # A GPU works on its own: while it computes these, the ones before are handed on.
                waiting.append(ended)
                if len(waiting) > 1:
                    yield from waiting.popleft()
        for ended in waiting:
            yield from ended

    def _waves(self, jobs: Sequence[Job]) -> Iterator[list[tuple[Job, list[Begun]]]]:
        """Jobs that are begun together, each with its updates."""
        allowed, size, most = room(self.world.device), 0, deque([len(jobs)])
        if self.cuda and self.settings.chunk is None:
            # The CPU begins and ends clients while the GPU computes others: only few at first, which it waits for, and
            # at last those with most steps, while which all others are handed on.
            jobs = sorted(jobs, key=lambda job: self.world.shards.size(job.device))
            most = deque(waves(len(jobs)))
        wave: list[tuple[Job, list[Begun]]] = []
        for job in jobs:
            begun = self._begin(job)
            wave.append((job, begun))
            size += self._size(begun)
            if size > allowed or len(wave) >= most[0]:
                yield wave
                wave, size = [], 0
                if len(most) > 1:
                    most.popleft()
        yield wave

    def _wave(self, wave: Sequence[tuple[Job, list[Begun]]]) -> Iterator[Iterable[tuple[Job, Done]]]:
        """Those that can be stacked with most steps first, then the others in the order they came."""
        groups: defaultdict[Hashable, list[Begun]] = defaultdict(list)
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
            shard = world.shard(job.device)
            parts = {"": client} if isinstance(client, LoopClient) else client.updates(world.task, job.down)
            begun = [
                Begun(job, name, each, shard, own, *each.begin(world.task, job.down, shard, own, job.context))
                for name, each in parts.items()
            ]
        except InputError:
            raise
        except Exception as error:
            raise failed(job, shard, error) from error
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

    def _steps(self, kind: Hashable, chunk: list[Begun]) -> list[Carry]:
        """All steps of all clients of a chunk; their carries at the end."""
        batches = Batches(chunk, self.world.device, size_for(len(chunk)) if self.cuda else len(chunk))
        client = chunk[0].client
        carry = stacked([each.carry for each in chunk])
        ended: list[Carry] = []  # from the back: the client with fewest steps first
        clients = len(chunk)
        recording: Recording | None = None
        for step, active in enumerate(batches.active):
            if active < clients:
                # What a recording works on is overwritten by the next step.
                kept = part(carry, slice(active, clients))
                kept = moved_out(kept) if recording else kept
                ended += [part(kept, place) for place in range(clients - active - 1, -1, -1)]
                carry, clients = part(carry, slice(0, active)), active
            wanted = self._recording(kind, client, batches, step, carry, clients)
            if wanted is None:
                batch, mask = batches.at(step, clients)
                carry = self._step(carry, batch, mask, client=client, clients=clients)
                self._measure(kind, clients)
            else:
                if recording is None or not wanted.continues(recording):
                    wanted.load(carry, clients)
                wanted.step(batches, step)
                carry = wanted.carry  # which may have places that no client is at
            recording = wanted
        kept = part(carry, slice(0, clients))
        kept = moved_out(kept) if recording else kept
        ended += [part(kept, place) for place in range(clients - 1, -1, -1)]
        tails = zip(chunk, reversed(ended))
        return [{**tail, FINISH: each.carry[FINISH]} if FINISH in each.carry else tail for each, tail in tails]

    def _step(self, carry: Carry, batch: Batch, mask: Tensor | None, client: LoopClient, clients: int) -> Carry:
        with Stacked(clients, mask):
            return client.step(self.world.task, carry, batch)

    def _recording(
        self, kind: Hashable, client: LoopClient, batches: Batches, step: int, carry: Carry, clients: int
    ) -> Recording | None:
        """The recording that can do this step, made now if this kind has come often."""
        if not self.cuda or kind in self._unrecordable:
            return None
        recordings, size = self._recordings.setdefault(kind, {}), size_for(clients)
        if size not in recordings:
            if self._unrecorded[kind] < UNRECORDED:
                self._unrecorded[kind] += 1
                return None
            fill = torch.arange(size, device=self.world.device).clamp_max(clients - 1)
            larger = max(recordings, default=0)
            try:
                recordings[size] = Recording(
                    partial(self._step, client=client, clients=size),
                    wider(carry, fill),
                    batches.at(step, size)[0],
                    batches.mask[step, :size],
                    self._pool,
                    recordings[larger].carry if larger > size else None,
                )
            except Unrecordable:
                self._unrecordable.add(kind)
                return None
        return recordings[size]

    def _measure(self, kind: Hashable, clients: int) -> None:
        """Looks once at how much memory a client of this kind takes."""
        if self.cuda and kind not in self._bytes:
            peak = torch.cuda.max_memory_allocated(self.world.device) - self._before
            self._bytes[kind] = max(1.0, peak / clients)

    def _finish(self, chunk: list[Begun], carries: list[Carry], left: Counter[str]) -> Ended:
        """The jobs of which nothing is left to do."""
        world, jobs, done = self.world, [], []
        for each, carry in zip(chunk, carries):
            job = each.job
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

    def _computed(self, kind: Hashable, group: list[Begun]) -> Iterator[tuple[list[Begun], list[Carry]]]:
        """The group in pieces that fit into memory, each with its carries; one that did not fit comes in halves."""
        rest = group
        while rest:
            size = min(self._chunk(kind), len(rest))
            try:
                if self.cuda:
                    self._before = torch.cuda.memory_allocated(self.world.device)
                    torch.cuda.reset_peak_memory_stats(self.world.device)
                carries = self._steps(kind, rest[:size])
            except torch.cuda.OutOfMemoryError:
                if size == 1:
                    sentence = f"one client of this model does not fit into the memory of {self.world.device}"
                    raise RunError(sentence) from None
                self._recordings.clear()
                torch.cuda.empty_cache()
                self._most[kind] = size // 2
                warnings.warn(f"{size} clients at once do not fit on the GPU; going on with {size // 2}", stacklevel=2)
                continue
            yield rest[:size], carries
            rest = rest[size:]

    def _chunk(self, kind: Hashable) -> int:
        if kind in self._most or self.settings.chunk is not None:
            return self._most.get(kind) or self.settings.chunk or 1
        if not self.cuda:
            least, most = CPU_CHUNK
            return max(least, min(most, CPU_BYTES // self._weights))
        if kind not in self._bytes:
            return FIRST_CHUNK
        free, _ = torch.cuda.mem_get_info(self.world.device)
        free += torch.cuda.memory_reserved(self.world.device) - torch.cuda.memory_allocated(self.world.device)
        return max(1, min(LARGEST_CHUNK, int(MEMORY_SHARE * free / self._bytes[kind])))

    def _can_stack(self, kind: Hashable, group: list[Begun]) -> bool:
        if kind not in self._stackable:
            with full_precision(self.world.task.model):
                self._stackable[kind] = self._agrees(group[:2])
        return self._stackable[kind]

    def _agrees(self, some: list[Begun]) -> bool:
        """Whether one step of some clients gives the same stacked and apart."""
        some = [each for each in some if each.count]
        if not some:
            return False
        client, task = some[0].client, self.world.task
        batches = Batches(some, self.world.device, len(some))
        batch, mask = batches.at(0, len(some))
        try:
            carry = stacked([each.carry for each in some])
            together = self._step(carry, batch, mask, client=client, clients=len(some))
            for place, each in enumerate(some):
                apart = client.step(task, each.carry, next(iter(each.steps)))
                if not all(close(part(together[key], place), apart[key], each.carry.get(key)) for key in together):
                    return False
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
            return False
        return True
