"""Runs the jobs of many clients as one batched computation, on a CPU or a GPU.

Jobs are begun one by one, stacked with those of the same kind, stepped together, and finished one by one. Clients with
most steps come first, so that those that have finished are dropped from the end of the stack and cost nothing. Whether
a kind of job can be stacked is tested once against the plain step. Jobs that cannot be stacked run one by one and are
counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from undergrowth.core import CODE_ERRORS, InputError, Packet, RunError, State
from undergrowth.core.client import Carry, LoopClient, Updates, join_updates, split_limit
from undergrowth.core.names import FINISH, STEPS_DONE
from undergrowth.engines.jobs import FinishedJob, job_error, run_job, send_up
from undergrowth.engines.samples import shards_at
from undergrowth.engines.states import memory_limit
from undergrowth.engines.vector.finished_stack import FinishedStack
from undergrowth.engines.vector.recording import RecordingMemory
from undergrowth.engines.vector.stack import Begun, job_bytes, waves
from undergrowth.engines.vector.stacked_loops import run_in_stacks
from undergrowth.engines.vector.stacked_steps import StackedSteps
from undergrowth.engines.world import EngineSettings, Job, World

MAX_PENDING_STACKS = 4  # parts of stacks that wait for the GPU: those of one stack, and the last of the one before


class StackRunner(StackedSteps):
    """Runs jobs for a world, which holds the states of the devices."""

    def __init__(self, world: World, settings: EngineSettings, memory: RecordingMemory | None = None) -> None:
        # The loops of `before_steps` and `after_steps` are computed in stacks, too.
        task = replace(world.task, run_loops=partial(run_in_stacks, self))
        super().__init__(task, world.torch_device, settings.chunk, memory or RecordingMemory())
        self.world = world
        self.settings = settings
        self.counts = {"stacked": 0.0, "not_stacked": 0.0}  # jobs of the last call
        self._finished: defaultdict[str, list[tuple[Packet, State]]] = defaultdict(list)  # device → finished updates
        self._job_bytes: dict[tuple[int, ...], int] = {}  # kinds of a job's updates in this round → bytes that it holds

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, FinishedJob]]:
        """Runs all jobs, as many at a time as there is memory for."""
        self.counts = {"stacked": 0.0, "not_stacked": 0.0}
        self.start_round()
        self._job_bytes.clear()
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
            groups = waves(sorted(jobs, key=lambda job: shards_at(self.world.shards, job.root_round).size(job.device)))
        for group in groups:
            with suppress(Exception):  # samples that cannot be read raise again when their job begins
                self.world.samples.prefetch([job.device for job in group], group[0].root_round)
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
        groups: dict[int, list[Begun]] = {}
        for _, begun in wave:
            for each in begun:
                groups.setdefault(each.kind, []).append(each)
        stackable = {each.job.device for group in groups.values() for each in group}
        for kind, group in groups.items():
            group.sort(key=lambda each: -each.count)
            if not self.can_stack(kind, group):
                stackable.difference_update(each.job.device for each in group)
        groups = {kind: [each for each in group if each.job.device in stackable] for kind, group in groups.items()}
        try:
            yield from self._run_stacks(groups)
        except (InputError, RunError):
            raise
        except CODE_ERRORS:
            for job, _ in wave:  # the first one that fails alone, too, raises an error that names its device
                run_job(self.world, job)
            raise
        self.counts["stacked"] += len(stackable)
        self.counts["not_stacked"] += len(wave) - len(stackable)
        rest = [job for job, _ in wave if job.device not in stackable]
        if rest:
            yield ((job, run_job(self.world, job)) for job in rest)

    def _run_stacks(self, groups: Mapping[int, list[Begun]]) -> Iterator[FinishedStack]:
        """The jobs of groups of one kind each, in the order in which they finish."""
        left = Counter(each.job.device for group in groups.values() for each in group)  # unfinished updates
        for kind, group in groups.items():
            for chunk, carries in self.compute(kind, group):
                yield self._finish(chunk, carries, left)

    def _begin(self, job: Job) -> list[Begun]:
        """All updates of a job; none if the client is not made of steps."""
        world, client, shard = self.world, self.world.client, None
        if not isinstance(client, LoopClient | Updates):
            return []
        own = world.states.get(job.device)
        try:
            shard = world.samples.of(job.device, job.root_round)
            parts = {"": client} if isinstance(client, LoopClient) else client.updates(world.task, job.down)
            begun = [
                Begun(job, name, each, shard, own, *each.begin(world.task, job.down, shard, own, job.context))
                for name, each in parts.items()
            ]
        except InputError:
            raise
        except CODE_ERRORS as error:
            raise job_error(job, shard, error) from error
        for each in begun:
            each.kind = self.kind_of(each)
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

    def _finish(self, chunk: list[Begun], carries: list[Carry], left: Counter[str]) -> FinishedStack:
        """The jobs whose updates have all finished."""
        world, jobs, finished = self.world, [], []
        loops = [each.loop._replace(carry=_at_the_end(each, carry)) for each, carry in zip(chunk, carries, strict=True)]
        for each, carry in zip(chunk, chunk[0].client.after_steps(self.task, loops), strict=True):
            job = each.job
            each.carry = {}  # frees what `before_steps` made
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


def _at_the_end(each: Begun, carry: Carry) -> Carry:
    """The carry of the last step, with what only `finish` reads."""
    kept = {FINISH: each.carry[FINISH]} if FINISH in each.carry else {}
    return {**carry, **kept, STEPS_DONE: each.count}


def _is_available(finished: Iterable[tuple[Job, FinishedJob]]) -> bool:
    """Whether the jobs can be read without waiting for a GPU."""
    return not isinstance(finished, FinishedStack) or finished.available
