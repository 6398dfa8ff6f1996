"""Stacking: jobs of many clients as one batched computation, on a CPU or a GPU.

Jobs are begun one by one, stacked with those of the same kind, stepped together, and finished one by one. Clients
with most steps come first, so that those who are done drop out at the end of the stack and nothing is computed for
them. Whether a kind of job can be stacked is tried out once against the plain step; what cannot be stacked is done
serially and counted.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from undergrowth.core import Batch, Carry, InputError, LoopClient, RunError, finite
from undergrowth.engines.vector.layers import Stacked
from undergrowth.engines.vector.recording import Recording, Unrecordable, size_for
from undergrowth.engines.vector.stack import FINISH, Batches, Begun, moved_out, part, stacked, wider
from undergrowth.engines.world import Done, Job, Settings, World, delivered, do, failed

CPU_CHUNK = 16  # clients; more do not fit into the caches of a core
FIRST_CHUNK = 24  # clients on a GPU whose memory is measured before more are taken
MEMORY_SHARE = 0.4  # of what is free on the GPU: a recording needs as much again
ALLOWED = 0.02  # of the length of a step, between a step in a stack and the same alone
LARGEST_CHUNK = 256  # clients on a GPU; more gain nothing


class Stacking:
    """Does jobs for a world, whose states tell what the devices have kept."""

    def __init__(self, world: World, settings: Settings) -> None:
        self.world = world
        self.settings = settings
        self.counts = {"stacked": 0.0, "not_stacked": 0.0}  # jobs of the last call
        self.cuda = torch.device(world.device).type == "cuda"
        self._stackable: dict[Hashable, bool] = {}
        self._bytes: dict[Hashable, float] = {}  # kind → bytes of one client on the GPU
        self._seen: set[Hashable] = set()  # kinds that have been computed before
        self._recordings: dict[Hashable, Recording] = {}
        self._unrecordable: set[Hashable] = set()
        self._most: dict[Hashable, int] = {}  # kind → clients at once, where more did not fit
        self._pool = torch.cuda.graph_pool_handle() if self.cuda else None

    def done(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Done]]:
        """All jobs: those that can be stacked with most steps first, then the others in the order they came."""
        groups: defaultdict[Hashable, list[Begun]] = defaultdict(list)
        if isinstance(self.world.client, LoopClient):
            for job in jobs:
                begun = self._begin(job)
                groups[begun.kind()].append(begun)
        stacked_up: set[str] = set()
        for kind, group in groups.items():
            group.sort(key=lambda each: -each.count)
            if not self._can_stack(kind, group):
                continue
            stacked_up.update(each.job.device for each in group)
            for chunk, carries in self._computed(kind, group):
                yield from zip((each.job for each in chunk), self._deliver(chunk, carries))
            self._seen.add(kind)
        self.counts = {"stacked": float(len(stacked_up)), "not_stacked": float(len(jobs) - len(stacked_up))}
        states = self.world.states
        for job in jobs:
            if job.device not in stacked_up:
                yield job, do(self.world, job, states.get(job.device), states.residual(job.device))

    def _begin(self, job: Job) -> Begun:
        world, shard = self.world, None
        own = world.states.get(job.device)
        try:
            shard = world.shards.train(job.device).to(world.device)
            carry, steps = world.client.begin(world.task, job.down, shard, own, job.context)  # type: ignore[attr-defined]
        except InputError:
            raise
        except Exception as error:
            raise failed(job, shard, error) from error
        count = len(steps) if job.limit is None else min(job.limit, len(steps))
        return Begun(job, shard, own, carry, steps, count)

    def _steps(self, kind: Hashable, chunk: list[Begun]) -> list[Carry]:
        """All steps of all clients of a chunk; their carries at the end."""
        batches = Batches(chunk, self.world.device)
        carry = stacked([each.carry for each in chunk])
        ended: list[Carry] = []  # from the back: the client with fewest steps first
        clients = len(chunk)
        recording: Recording | None = None
        for step in range(max(batches.counts, default=0)):
            active = batches.active(step)
            if active < clients:
                # What a recording works on is overwritten by the next step.
                kept = part(carry, slice(active, clients))
                kept = moved_out(kept) if recording else kept
                ended += [part(kept, place) for place in range(clients - active - 1, -1, -1)]
                carry, clients = part(carry, slice(0, active)), active
            wanted = self._recording(kind, batches, step, carry, clients)
            if wanted is not None:
                if wanted is not recording:
                    wanted.load(carry, clients)
                wanted.step(batches.pool, batches.table[step, :clients].reshape(-1), batches.share[step, :clients])
                carry = part(wanted.carry, slice(0, clients))
            else:
                batch, mask = batches.at(step, clients)
                carry = self._step(carry, batch, mask, clients)
            recording = wanted
        kept = moved_out(carry) if recording else carry
        ended += [part(kept, place) for place in range(clients - 1, -1, -1)]
        tails = zip(chunk, reversed(ended))
        return [{**tail, FINISH: each.carry[FINISH]} if FINISH in each.carry else tail for each, tail in tails]

    def _step(self, carry: Carry, batch: Batch, mask: Tensor | None, clients: int) -> Carry:
        with Stacked(clients, mask):
            return self.world.client.step(self.world.task, carry, batch)  # type: ignore[attr-defined,no-any-return]

    def _recording(self, kind: Hashable, batches: Batches, step: int, carry: Carry, clients: int) -> Recording | None:
        """The recording that can do this step, made now if this kind has come before."""
        if not self.cuda or kind not in self._seen or kind in self._unrecordable:
            return None
        size = size_for(clients)
        whole = batches.full[step] and size == clients
        key = (kind, size, whole)
        if key not in self._recordings:
            fill = torch.arange(size, device=self.world.device).clamp_max(clients - 1)
            rows = batches.table[step].index_select(0, fill).reshape(-1)
            batch = {name: values.index_select(0, rows) for name, values in batches.pool.items()}
            share = batches.share[step].index_select(0, fill)
            batch["share"] = share.reshape(-1)
            try:
                mask = None if whole else (share > 0).to(share.dtype)
                self._recordings[key] = Recording(
                    partial(self._step, clients=size), wider(carry, fill), batch, mask, self._pool
                )
            except Unrecordable:
                self._unrecordable.add(kind)
                return None
        return self._recordings[key]

    def _deliver(self, chunk: list[Begun], carries: list[Carry]) -> list[Done]:
        world, done = self.world, []
        for each, carry in zip(chunk, carries):
            job = each.job
            up, kept = world.client.finish(  # type: ignore[attr-defined]
                world.task, job.down, carry, each.shard, each.own, job.context
            )
            done.append(delivered(world, job, up, kept, world.states.residual(job.device), checked=False))
        return [_refused(one, problem) for one, problem in zip(done, not_finite_of([one.up.tensors for one in done]))]

    def _computed(self, kind: Hashable, group: list[Begun]) -> Iterator[tuple[list[Begun], list[Carry]]]:
        """The group in pieces that fit into memory, each with its carries; one that did not fit comes in halves."""
        rest = group
        while rest:
            size = min(self._chunk(kind), len(rest))
            before = torch.cuda.memory_allocated(self.world.device) if self.cuda else 0
            try:
                if self.cuda:
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
            if self.cuda and kind not in self._bytes:
                peak = torch.cuda.max_memory_allocated(self.world.device) - before
                self._bytes[kind] = max(1.0, peak / size)
            yield rest[:size], carries
            rest = rest[size:]

    def _chunk(self, kind: Hashable) -> int:
        if kind in self._most or self.settings.chunk is not None:
            return self._most.get(kind) or self.settings.chunk or 1
        if not self.cuda:
            return CPU_CHUNK
        if kind not in self._bytes:
            return FIRST_CHUNK
        free, _ = torch.cuda.mem_get_info(self.world.device)
        free += torch.cuda.memory_reserved(self.world.device) - torch.cuda.memory_allocated(self.world.device)
        return max(1, min(LARGEST_CHUNK, int(MEMORY_SHARE * free / self._bytes[kind])))

    def _can_stack(self, kind: Hashable, group: list[Begun]) -> bool:
        if kind not in self._stackable:
            with full_precision():
                self._stackable[kind] = self._agrees(group[:2])
        return self._stackable[kind]

    def _agrees(self, some: list[Begun]) -> bool:
        """Whether one step of some clients gives the same stacked and apart."""
        some = [each for each in some if each.count]
        if not some:
            return False
        client, task = self.world.client, self.world.task
        batches = Batches(some, self.world.device)
        batch, mask = batches.at(0, len(some))
        try:
            together = self._step(stacked([each.carry for each in some]), batch, mask, len(some))
            for place, each in enumerate(some):
                apart = client.step(task, each.carry, next(iter(each.steps)))  # type: ignore[attr-defined]
                if not all(_close(part(together[key], place), apart[key], each.carry.get(key)) for key in together):
                    return False
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
            return False
        return True


@contextmanager
def full_precision() -> Iterator[None]:
    """Without the shortcuts that a GPU may take: what is compared must differ by rounding alone."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def not_finite_of(uploads: Sequence[Mapping[str, Tensor]]) -> list[str | None]:
    """For each upload the name of a tensor with a value that is not finite, if it has one. One look for all."""
    named = [
        (place, name, value)
        for place, tensors in enumerate(uploads)
        for name, value in tensors.items()
        if value.is_floating_point() and value.numel()
    ]
    problems: list[str | None] = [None] * len(uploads)
    for (place, name, _), fine in zip(named, finite([value for _, _, value in named])):
        if not fine and problems[place] is None:
            problems[place] = f"'{name}' has values that are not finite"
    return problems


def _refused(done: Done, problem: str | None) -> Done:
    bad = problem or next((f"'{k}' is {v}" for k, v in done.up.scalars.items() if not abs(v) < float("inf")), None)
    return done if bad is None else Done(done.up, done.size, done.own, done.residual, bad)


def _close(a: object, b: object, before: object) -> bool:
    """Whether a step went the same way: what differs must be small beside what the step changed."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape:
            return False
        one, other = a.double(), b.double()
        start = before.double() if isinstance(before, Tensor) and before.shape == b.shape else torch.zeros_like(other)
        allowed = ALLOWED * (other - start).norm() + 1e-6 * other.norm()
        return bool((one - other).norm() <= allowed) or not bool(other.isfinite().all())
    if isinstance(a, Mapping) and isinstance(b, Mapping) and isinstance(before, Mapping):
        return a.keys() == b.keys() and all(_close(a[key], b[key], before.get(key)) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and isinstance(before, list | tuple):
        return len(a) == len(b) and all(_close(*three) for three in zip(a, b, before))
    return a == b
