"""Worker processes that last as long as the run. Each gets its jobs of a round in one message.

Jobs are assigned to workers before the round starts (`run.placement`). Packets and states are exchanged through shared
memory; samples are inherited. Workers combine uploads, so each returns one partial result per node. A worker that dies
is replaced, and the new one continues after the last finished job: the result is the same, bit for bit.

The number of workers and the placement decide which uploads are combined first, and so the last bits of a result. The
placements rr, srr and bu (the default) depend only on the jobs. lb and lpt learn from measured seconds: with them, two
equal runs may differ in their last bits.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

from undergrowth.core import InputError, RunError
from undergrowth.devices import Tracer
from undergrowth.engines.combining import PartialResults, RoundReport, gather_outcomes, merge_partial_results
from undergrowth.engines.jobs import count_batches
from undergrowth.engines.placement import measure_placement, placement
from undergrowth.engines.processes.arena import Arena, ArenaFull, TensorPlace, create_arenas
from undergrowth.engines.processes.worker import EMPTY, Entry, Worker
from undergrowth.engines.processes.worker_count import assign_in_turn, assign_to_cores, is_gpu, workers_on_gpu
from undergrowth.engines.processes.worker_jobs import WorkerJobs
from undergrowth.engines.processes.worker_pool import WorkerPool
from undergrowth.engines.samples import shards_at
from undergrowth.engines.states import States
from undergrowth.engines.world import EngineSettings, Job, Outcome, World

MAX_DEATHS = 3  # of workers in a row on the same job


class ProcessesEngine:
    """Runs jobs in worker processes, whose number and placement are settings."""

    def __init__(self, settings: EngineSettings | None = None) -> None:
        self.settings = settings or EngineSettings()
        names, workers = self.settings.torch_devices, self.settings.workers
        self._gpus = [name for name in dict.fromkeys(names) if is_gpu(name)] if workers is None else []
        # The torch device of every worker; empty until `choose_workers` is called for the GPUs.
        self.torch_devices = [] if self._gpus else assign_in_turn(names, workers or cores())
        self.placement = placement(self.settings.placement)
        self._facts: dict[str, float] = {}
        self._pool: WorkerPool | None = None

    def open(self, world: World) -> None:
        self.world = world
        self._start()

    def _start(self) -> WorkerPool:
        self.close()
        most = len(self.torch_devices) or max(cores(), len(self.settings.torch_devices))
        self._ours, self._theirs = create_arenas(most)
        self._pool = WorkerPool(partial(serve, self.world, self.settings, self._ours, self._theirs))
        # Also if `close` is never called: when the engine is deleted, and at the end of the program.
        self._finalizer = weakref.finalize(self, self._pool.close)
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._finalizer()
            self._pool = None

    @property
    def pids(self) -> dict[int, int]:
        """The process ids of the workers that were started so far, by number."""
        return self._pool.pids if self._pool else {}

    def facts(self) -> Mapping[str, float]:
        return self._facts

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        if jobs:
            try:
                self.choose_workers(jobs)
                outcomes = gather_outcomes(self.world, jobs, self._run_jobs)
            except BaseException:
                self.close()  # workers may be busy with jobs whose results nobody will read
                raise
            yield from outcomes

    # The number of workers -----------------------------------------------------------------------------------

    def choose_workers(self, jobs: Sequence[Job]) -> list[str]:
        """Chooses how many workers run on each GPU if the user did not; returns one note per GPU."""
        if self.torch_devices:
            return []
        if self.settings.stack:
            # One worker computes as many clients at once as the GPU's memory allows.
            counts, reason = dict.fromkeys(self._gpus, 1), "it stacks its jobs"
        else:
            job = sorted(jobs, key=partial(count_batches, self.world))[len(jobs) // 2]
            job_bytes = self._job_bytes(job)
            counts = {gpu: workers_on_gpu(job_bytes, gpu_bytes) for gpu, gpu_bytes in self._gpu_bytes().items()}
            reason = f"a job needs {job_bytes / 1e9:.2g} GB"
        self.torch_devices = assign_to_cores(self.settings.torch_devices, counts, cores())
        notes = []
        for gpu in self._gpus:
            count = self.torch_devices.count(gpu)
            notes.append(f"processes: {count} {'worker' if count == 1 else 'workers'} on {gpu}: {reason}")
        return notes

    def _job_bytes(self, job: Job) -> int:
        """Memory that a job needs, counted without running it."""
        shards = shards_at(self.world.shards, job.root_round)
        sample = shards.train(job.device).x
        tracer = Tracer(self.world.task, self.world.client, tuple(sample.shape[1:]), sample.dtype)
        return tracer.work(job.down, shards.size(job.device), self.world.states.get(job.device)).memory

    def _gpu_bytes(self) -> dict[str, int]:
        """Memory of each GPU. Workers are asked, because the parent must not initialise CUDA before it forks."""
        pool = self._pool or self._start()
        for number, gpu in enumerate(self._gpus):
            pool.send(number, json.dumps({"torch_device": gpu}).encode())
        found: dict[str, int] = {}
        for number, gpu in enumerate(self._gpus):
            try:
                message = json.loads(pool.receive(number))
            except (EOFError, OSError):
                raise RunError(f"a worker on {gpu} died when it started") from None
            if "error" in message:
                raise _error_of(message)
            found[gpu] = message["memory"]
        return found

    # Jobs to workers, and reports back -----------------------------------------------------------------------

    def _run_jobs(self, jobs: Sequence[Job]) -> RoundReport:
        """Runs jobs on the workers, as many at a time as fit into shared memory."""
        report = RoundReport(States(folder=self.world.states.folder))
        merged: list[PartialResults] = []
        first = 0
        while first < len(jobs):
            entries = self._write_jobs(jobs, first)
            workers = self._run_entries(jobs, entries, report)
            partial_results = (worker.partial_results(self.world.servers) for worker in workers)
            merged.append(merge_partial_results(self.world.servers, partial_results))
            first += len(entries)
        report.partial_results = merge_partial_results(self.world.servers, merged)
        return report

    def _write_jobs(self, jobs: Sequence[Job], first: int) -> dict[int, Entry]:
        """Writes what jobs need into shared memory, from position `first` on, until it is crowded."""
        if self._pool is None:
            self._start()
        arena, states = self._ours, self.world.states
        arena.reset()
        seen: dict[int, TensorPlace] = {}  # a server sends one model to many devices
        downs: dict[int, int] = {}
        entries: dict[int, Entry] = {}
        for position in range(first, len(jobs)):
            job = jobs[position]
            kept = states.get(job.device), states.residual(job.device)
            try:
                if id(job.down) not in downs:
                    downs[id(job.down)] = arena.put(job.down, seen)
                addresses = [arena.put(state) if state else EMPTY for state in kept]
            except ArenaFull:
                if entries:
                    break
                raise RunError(f"what {job.device} is sent needs more than {arena.size} bytes") from None
            down = downs[id(job.down)]
            entries[position] = Entry(
                position, job.node, job.device, down, job.context, job.combine, job.limit, job.root_round, *addresses
            )
            if arena.crowded:
                break
        return entries

    def _run_entries(self, jobs: Sequence[Job], entries: Mapping[int, Entry], report: RoundReport) -> list[WorkerJobs]:
        positions = list(entries)
        batches = [count_batches(self.world, jobs[position]) for position in positions]
        placed = self.placement.place(batches, self.torch_devices)
        workers = {
            number: WorkerJobs(jobs, [positions[index] for index in indices], report)
            for number, indices in enumerate(placed)
            if indices
        }
        pool, busy = self._pool, dict(workers)
        assert pool is not None
        for number, worker in workers.items():
            self._send(pool, number, worker, entries)
        while busy:
            for number in pool.wait(busy):
                if self._receive(pool, number, busy[number], entries):
                    del busy[number]
        self._observe(workers, dict(zip(positions, batches, strict=True)))
        return list(workers.values())

    def _send(
        self, pool: WorkerPool, number: int, worker: WorkerJobs, entries: Mapping[int, Entry], died: bool = False
    ) -> None:
        """Gives a worker the rest of its jobs, with the partial results of those that are finished."""
        while worker.left:
            if died:
                _count_death(worker)
            arena = self._theirs[number]
            arena.reset()
            nodes = {worker.jobs[position].node for position in worker.left}
            known = worker.partial_results(self.world.servers)
            message = {
                "torch_device": self.torch_devices[number],
                "jobs": [entries[position] for position in worker.left],
                "partial_results": {node: arena.put(packet) for node, packet in known.items() if node in nodes},
                "top": arena.top,
            }
            try:
                pool.send(number, json.dumps(message).encode())
                return
            except OSError:
                pool.end(number)
                died = True

    def _receive(self, pool: WorkerPool, number: int, worker: WorkerJobs, entries: Mapping[int, Entry]) -> bool:
        """Handles a worker's message, or its death. True: all its jobs are finished."""
        try:
            message = json.loads(pool.receive(number))
        except (EOFError, OSError):
            pool.end(number)
            worker.receive(self._theirs[number])
            worker.finish_time = perf_counter()
            self._send(pool, number, worker, entries, died=True)
            return not worker.left
        if "error" in message:
            raise _error_of(message)
        worker.receive(self._theirs[number])
        if "finish_time" in message:
            worker.finish_time = message["finish_time"]
            return True
        with suppress(OSError):  # it died, which the next call of `_receive` will find
            pool.send(number, b"continue")
        return False

    def _observe(self, workers: Mapping[int, WorkerJobs], batches: Mapping[int, int]) -> None:
        """Tells the placement how long every job took, and records how good the placement was."""
        timed = [
            (self.torch_devices[number], worker.report.jobs[position].seconds, batches[position])
            for number, worker in workers.items()
            for position in worker.positions
        ]
        for kind, seconds, count in timed:
            self.placement.observe(kind, count, seconds)
        finish_times = [worker.finish_time for worker in workers.values()]
        longest = max(worker.seconds for worker in workers.values())
        self._facts = {
            "workers_timedelta": max(finish_times) - min(finish_times),
            "placement_excess": measure_placement(self.torch_devices, timed, longest),
            "workers": float(len(self.torch_devices)),
        }


def serve(
    world: World, settings: EngineSettings, theirs: Arena, ours: Sequence[Arena], number: int, connection: Connection
) -> None:
    """The main function of a worker process."""
    Worker(world, settings, theirs, ours[number], connection).serve()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _count_death(worker: WorkerJobs) -> None:
    worker.deaths += 1
    if worker.deaths == MAX_DEATHS:
        job = worker.jobs[worker.left[0]]
        raise RunError(
            f"{job.device} ended its worker process {MAX_DEATHS} times in a row in round "
            f"{job.context.round + 1}; perhaps it needs more memory than there is"
        )


def _error_of(message: Mapping[str, Any]) -> Exception:
    """The error that a client raised in a worker."""
    error = (InputError if message["input"] else RunError)(message["error"])
    error.add_note(f"in a worker process:\n{message['trace']}")
    return error
