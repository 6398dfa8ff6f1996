"""Runs the jobs of many clients as one batched computation, on a CPU or a GPU.

Jobs are begun one by one, stacked with those of the same kind, stepped together, and finished one by one. Clients with
most steps come first, so that those that have finished are dropped from the end of the stack and cost nothing. Whether
a kind of job can be stacked is tested once against the plain step. Jobs that cannot be stacked run one by one and are
counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from undergrowth.core import InputError, Packet, State, Task, map_tensors
from undergrowth.core.client import Batch, Carry, LoopClient, Updates, join_updates, split_limit
from undergrowth.core.names import FINISH, STEPS_DONE
from undergrowth.engines.jobs import FinishedJob, job_error, run_job, send_up
from undergrowth.engines.states import memory_limit
from undergrowth.engines.vector.agreement import agree, full_precision
from undergrowth.engines.vector.carries import slice_stack, stack_carries, unstack
from undergrowth.engines.vector.finished_stack import FinishedStack
from undergrowth.engines.vector.layers import Stacked
from undergrowth.engines.vector.recording import FinishedCarries, Recording, Recordings, allocate_finished, size_for
from undergrowth.engines.vector.stack import Batches, Begun, job_bytes, waves
from undergrowth.engines.vector.stack_size import StackSize
from undergrowth.engines.world import EngineSettings, Job, World

STACKING_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)  # raised by steps in a stack
MAX_PENDING_STACKS = 4  # parts of stacks that wait for the GPU: those of one stack, and the last of the one before


class StackRunner:
    """Runs jobs for a world, which holds the states of the devices."""

    def __init__(self, world: World, settings: EngineSettings) -> None:
        self.world = world
        self.settings = settings
        self.counts = {"stacked": 0.0, "not_stacked": 0.0}  # jobs of the last call
        self.cuda = torch.device(world.torch_device).type == "cuda"
        self._kinds: dict[Hashable, int] = {}  # what clients must have in common to be stacked → its number
        self._stackable: dict[int, bool] = {}
        self._finished: defaultdict[str, list[tuple[Packet, State]]] = defaultdict(list)  # device → finished updates
        self._job_bytes: dict[tuple[int, ...], int] = {}  # kinds of a job's updates → bytes that it holds
        model_bytes = 4 * sum(shape.numel() for shape in world.task.model.shapes.values())
        self._stack_size = StackSize(world.torch_device, settings.chunk, model_bytes)
        self._recordings = Recordings(self._step, self.cuda)
        self._exact_task = world.task.with_models(lambda model: model.with_precision(False))  # to compare steps

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, FinishedJob]]:
        """Runs all jobs, as many at a time as there is memory for."""
        self.counts = {"stacked": 0.0, "not_stacked": 0.0}
        self._stack_size.start_round()
        self._recordings.start_round()
        pending: deque[Iterable[tuple[Job, FinishedJob]]] = deque()
        for wave in self._waves(jobs):
            for finished in self._run_wave(wave):
                # A GPU works asynchronously. Jobs that it has finished are returned at once; the CPU waits for others
                # only after all are begun, or if too many are pending.
                pending.append(finished)
                while pending and (len(pending) > MAX_PENDING_STACKS or _is_available(pending[0])):
                    yield from pending.popleft()
        for finished in pending:
            yield from finished

    def _waves(self, jobs: Sequence[Job]) -> Iterator[list[tuple[Job, list[Begun]]]]:
        """Jobs that are begun together, each with its updates."""
        max_bytes = memory_limit(self.world.torch_device)
        groups = [jobs]
        if self.cuda and self.settings.chunk is None:
            groups = waves(sorted(jobs, key=lambda job: self.world.shards.size(job.device)))
        for group in groups:
            with suppress(Exception):  # samples that cannot be read raise again when their job begins
                self.world.samples.prefetch([job.device for job in group])
            wave: list[tuple[Job, list[Begun]]] = []
            held = 0
            for job in group:
                begun = self._begin(job)
                wave.append((job, begun))
                held += self._bytes_of(begun)
                if held > max_bytes:
                    yield wave
                    wave, held = [], 0
            if wave:
                yield wave

    def _run_wave(self, wave: Sequence[tuple[Job, list[Begun]]]) -> Iterator[Iterable[tuple[Job, FinishedJob]]]:
        """Jobs that can be stacked, most steps first, then the others in their order."""
        groups: defaultdict[int, list[Begun]] = defaultdict(list)
        for _, begun in wave:
            for each in begun:
                groups[each.kind].append(each)
        stackable = {each.job.device for group in groups.values() for each in group}
        for kind, group in groups.items():
            group.sort(key=lambda each: -each.count)
            if not self._can_stack(kind, group):
                stackable.difference_update(each.job.device for each in group)
        left = Counter(each.job.device for group in groups.values() for each in group)  # unfinished updates
        for kind, group in groups.items():
            group = [each for each in group if each.job.device in stackable]
            for chunk, carries in self._compute(kind, group):
                yield self._finish(chunk, carries, left)
        self.counts["stacked"] += len(stackable)
        self.counts["not_stacked"] += len(wave) - len(stackable)
        rest = [job for job, _ in wave if job.device not in stackable]
        if rest:
            yield ((job, run_job(self.world, job)) for job in rest)

    def _begin(self, job: Job) -> list[Begun]:
        """All updates of a job; none if the client is not made of steps."""
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
            raise job_error(job, shard, error) from error
        for each in begun:
            each.kind = self._kinds.setdefault(each.signature, len(self._kinds))
        if job.limit is not None:
            for each, count in zip(begun, split_limit(job.limit, [each.count for each in begun]), strict=True):
                each.count = count
        return begun

    def _bytes_of(self, begun: Sequence[Begun]) -> int:
        """Bytes that a job holds; without a state of its device, they are the same for all jobs of its kind."""
        if any(each.own for each in begun):
            return job_bytes(begun)
        kinds = tuple(each.kind for each in begun)
        if kinds not in self._job_bytes:
            self._job_bytes[kinds] = job_bytes(begun)
        return self._job_bytes[kinds]

    def _run_steps(self, kind: int, chunk: list[Begun]) -> Iterator[tuple[list[Begun], list[Carry]]]:
        """All steps of a chunk. Yields clients with their final carries, those that finish early before others."""
        if self._recordings.can_record(kind):
            yield from self._run_recorded_steps(kind, chunk)
            return
        batches = Batches(chunk, self.world.torch_device, len(chunk))
        carry = stack_carries([each.carry for each in chunk])
        clients = len(chunk)
        finished: list[Carry] = []  # of the last clients of the chunk
        for step, active in enumerate(batches.active):
            if active < clients:
                finished = [*unstack(slice_stack(carry, slice(active, clients)), clients - active), *finished]
                carry, clients = slice_stack(carry, slice(0, active)), active
            carry = self._step(carry, *batches.at(step, clients), client=chunk[0].client, clients=clients)
        yield chunk, [*unstack(carry, clients), *finished]

    def _run_recorded_steps(self, kind: int, chunk: list[Begun]) -> Iterator[tuple[list[Begun], list[Carry]]]:
        """The same in the buffers of recordings, which may have more places than there are clients."""
        batches = Batches(chunk, self.world.torch_device, size_for(len(chunk)))
        carry = stack_carries([each.carry for each in chunk])
        key = self._recordings.key(kind, carry)
        clients = len(chunk)
        recording: Recording | None = None
        parts: list[FinishedCarries] = []
        for step, active in enumerate(batches.active):
            if recording is not None and active < clients:
                parts = parts or allocate_finished(recording, clients)
                for part in parts:
                    part.put(recording, active, clients)
                while len(parts) > 1 and active <= parts[0].first:
                    split_point, carries = parts[0].first, parts.pop(0).carries()
                    yield chunk[split_point:], carries
                    chunk = chunk[:split_point]
            clients = active
            wanted = self._recordings.find(key, chunk[0].client, batches, carry, clients)
            if recording is None or not wanted.continues(recording):
                wanted.load(carry, clients)
            wanted.step(batches, step)
            carry, recording = wanted.carry, wanted
        assert recording is not None
        finished: list[Carry] = []
        for part in parts or allocate_finished(recording, clients):
            part.put(recording, 0, clients)
            finished = [*part.carries(), *finished]
        yield chunk, finished

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

    def _finish(self, chunk: list[Begun], carries: list[Carry], left: Counter[str]) -> FinishedStack:
        """The jobs whose updates have all finished."""
        world, jobs, finished = self.world, [], []
        for each, carry in zip(chunk, carries, strict=True):
            job = each.job
            carry = {**carry, STEPS_DONE: each.count}
            if FINISH in each.carry:
                carry[FINISH] = each.carry[FINISH]
            sent = each.client.finish(world.task, job.down, carry, each.shard, each.own, job.context)
            left[job.device] -= 1
            if isinstance(world.client, Updates):
                self._finished[job.device].append(sent)
                if left[job.device]:
                    continue
                sent = join_updates(each.own, self._finished.pop(job.device))
            jobs.append(job)
            finished.append(send_up(world, job, *sent, world.states.residual(job.device), check_finite=False))
        return FinishedStack(jobs, finished)

    def _compute(self, kind: int, group: list[Begun]) -> Iterator[tuple[list[Begun], list[Carry]]]:
        """The final carries of a group, in chunks that fit into memory; a chunk that did not fit is halved."""
        idle = [each for each in group if not each.count]
        if idle:
            yield idle, [each.carry for each in idle]
        rest = [each for each in group if each.count]
        while rest:
            size = min(self._stack_size.clients(kind), len(rest))
            left = rest[:size]
            try:
                for chunk, carries in self._run_steps(kind, left):
                    left = left[: -len(chunk)]
                    yield chunk, carries
            except torch.cuda.OutOfMemoryError:
                self._stack_size.halve(kind, size)
                self._recordings.clear()
                torch.cuda.empty_cache()
            rest = [*left, *rest[size:]]

    def _can_stack(self, kind: int, group: list[Begun]) -> bool:
        if kind not in self._stackable:
            pair = [each for each in group if each.count][:2]
            if not pair:
                return False
            if len(pair) == 1:
                pair.append(pair[0].altered)
            with full_precision():
                self._stackable[kind] = self._agrees(kind, pair)
        return self._stackable[kind]

    def _agrees(self, kind: int, pair: list[Begun]) -> bool:
        """Whether one step of two clients gives the same in a stack and alone.

        In double precision if the model supports it: otherwise rounding could decide, and differently after a resume.
        """
        with suppress(*STACKING_ERRORS):
            self._measure_step(kind, pair)
            for dtype in (torch.float64, torch.float32):
                with suppress(*STACKING_ERRORS):
                    return self._agrees_in(dtype, pair)
        return False

    def _measure_step(self, kind: int, pair: list[Begun]) -> None:
        """On a GPU, runs a step as it will be run later, to find out how much memory it takes and what it changes."""
        if self._recordings.cuda:
            batch, mask = Batches(pair, self.world.torch_device, len(pair)).at(0, len(pair))
            before = stack_carries([each.carry for each in pair])
            self._stack_size.start_measuring()
            after = self._step(before, batch, mask, client=pair[0].client, clients=len(pair), task=self._exact_task)
            self._stack_size.measure(kind, len(pair))
            self._recordings.learn(kind, before, after)

    def _agrees_in(self, dtype: torch.dtype, pair: list[Begun]) -> bool:
        def convert(value: Tensor) -> Tensor:
            return value.to(dtype) if value.dtype == torch.float32 else value

        client, task = pair[0].client, self._exact_task
        carries = [map_tensors(convert, each.carry) for each in pair]
        batch, mask = map_tensors(convert, Batches(pair, self.world.torch_device, len(pair)).at(0, len(pair)))
        stack = self._step(stack_carries(carries), batch, mask, client=client, clients=len(pair), task=task)
        for place, (each, carry) in enumerate(zip(pair, carries, strict=True)):
            alone = client.step(task, carry, map_tensors(convert, next(iter(each.steps))))
            if not all(agree(slice_stack(stack[key], place), alone[key], carry.get(key)) for key in stack):
                return False
        return True


def _is_available(finished: Iterable[tuple[Job, FinishedJob]]) -> bool:
    """Whether the jobs can be read without waiting for a GPU."""
    return not isinstance(finished, FinishedStack) or finished.available
