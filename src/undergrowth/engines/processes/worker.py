"""A worker process of the engine `processes`: runs its jobs of a round and commits a record after each.

The jobs of a round come in one message. A record in the worker's arena says what the device keeps, its upload if that
is not combined, and otherwise the partial result so far; so the parent loses nothing but the current job if the worker
dies. Partial results alternate between two slots of the arena, so the one in the latest record is always complete.
"""

from __future__ import annotations

import json
import math
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any, NamedTuple

import torch

from undergrowth.core import Context, InputError, Packet, RunError, State, move_to
from undergrowth.engines.combining import JobReport, WorkerCombiner
from undergrowth.engines.jobs import FinishedJob, run_job
from undergrowth.engines.processes.arena import Arena, ArenaFull
from undergrowth.engines.states import States
from undergrowth.engines.torch_settings import set_torch
from undergrowth.engines.vector.stack_runner import StackRunner
from undergrowth.engines.world import EngineSettings, Job, World

UNCHANGED, EMPTY = -1, 0  # instead of the address of a state
MAX_SIZE_RATIO = 4  # a partial result larger than this many uploads is written once, after the last job
MAX_CACHED_PACKETS = 16  # downloads kept on the worker's torch device
SLOT_SLACK = 1024  # bytes by which a slot is larger than its first partial result: numbers in it may get longer

FORKED_TOO_LATE = (
    "on a machine with a GPU, run.engine 'processes' cannot start in a process in which torch has trained before: "
    "start the run in a fresh process, or write serial or vector"
)


class Record(NamedTuple):
    """A finished job. `own`, `residual`, `upload` and `partial_result` are addresses in the worker's arena."""

    position: int
    seconds: float
    size: int
    problem: str | None
    conflict: bool
    scalars: dict[str, float]
    own: int
    residual: int
    upload: int
    partial_result: int


class Entry(NamedTuple):
    """A job in a message. `down`, `own` and `residual` are addresses in the parent's arena."""

    position: int
    node: str
    device: str
    down: int
    context: Sequence[Any]
    combine: bool
    limit: int | None
    root_round: int
    own: int
    residual: int


class Worker:
    """`theirs`: the parent's arena, which a worker only reads. `ours`: the worker's, which the parent only reads."""

    def __init__(
        self, world: World, settings: EngineSettings, theirs: Arena, ours: Arena, connection: Connection
    ) -> None:
        self.world = replace(world, states=_states_of_jobs())
        self.settings = settings
        self.theirs, self.ours, self.connection = theirs, ours, connection
        self.started = False
        self.stack_runner: StackRunner | None = None
        self.downs: dict[int, Packet] = {}  # address → a download of this round
        self.combiner = WorkerCombiner(world.servers)
        self.slots: dict[tuple[str, bool], tuple[int, int]] = {}  # node and which slot → its start and end
        self.latest_slot: dict[str, bool] = {}  # node → the slot that was written last

    def serve(self) -> None:
        """Answers messages until the connection ends. Every message names the worker's torch device."""
        with suppress(EOFError, OSError):  # the parent has closed the connection
            while True:
                message = json.loads(self.connection.recv_bytes())
                try:
                    self._start(message.pop("torch_device"))
                    answer = self._run(**message) if message else {"memory": gpu_memory(self.world.torch_device)}
                except Exception as error:
                    is_input, trace = isinstance(error, InputError), traceback.format_exc()
                    answer = {"error": str(error), "input": is_input, "trace": trace}
                self.connection.send_bytes(json.dumps(answer).encode())

    def _start(self, torch_device: str) -> None:
        if self.started:
            return
        set_torch(self.settings.tf32, torch_device=torch_device)
        probe = torch.ones((), requires_grad=True)
        try:
            torch.autograd.grad(probe.exp(), [probe])
        except RuntimeError as error:
            raise RunError(FORKED_TOO_LATE if "fork" in str(error) else str(error)) from None
        try:
            self.world = replace(self.world, task=self.world.task.to(torch_device), torch_device=torch_device)
        except Exception as error:
            raise RunError(f"a worker on {torch_device} could not start: {error}") from error
        self.started = True

    def _run(self, jobs: Sequence[Any], partial_results: dict[str, int], top: int) -> dict[str, Any]:
        """Runs jobs and commits a record for each. `top`: the first free address of the worker's arena."""
        self.ours.top = top
        self.slots.clear()
        self.downs.clear()
        given = {node: self._here(self.ours.take(address)) for node, address in partial_results.items()}
        self.combiner = WorkerCombiner(self.world.servers, given)
        entries = {entry.device: entry for entry in (Entry(*entry) for entry in jobs)}
        left = Counter(entry.node for entry in entries.values())
        began = perf_counter()
        for job, finished in self._finish(entries.values()):
            left[job.node] -= 1
            try:
                report = self.combiner.add(job, finished)._replace(seconds=perf_counter() - began)
                self._commit(entries[job.device].position, job, finished, report, last=not left[job.node])
            except (InputError, RunError):
                raise
            except Exception as error:
                raise RunError(f"{job.device} failed in round {job.context.round + 1}: {error!r}") from error
            if self.ours.crowded:
                self._flush()
            began = perf_counter()
        return {"finish_time": began}

    def _finish(self, entries: Iterable[Entry]) -> Iterator[tuple[Job, FinishedJob]]:
        """Runs jobs one by one, or in stacks if the settings say so."""
        if not self.settings.stack:
            for entry in entries:
                self.world.states = _states_of_jobs()
                job = self._job(entry)
                yield job, run_job(self.world, job)
            return
        self.world.states = _states_of_jobs()
        if self.stack_runner is None:
            self.stack_runner = StackRunner(self.world, self.settings)
        yield from self.stack_runner.run([self._job(entry) for entry in entries])

    def _job(self, entry: Entry) -> Job:
        own = self._here(self.theirs.get(entry.own)) if entry.own else {}
        residual = self._here(self.theirs.get(entry.residual)) if entry.residual else {}
        self.world.states.put(entry.device, own, residual)
        context = Context(*entry.context)
        down = self._down(entry.down)
        return Job(entry.node, entry.device, down, context, entry.combine, entry.limit, entry.root_round)

    def _down(self, address: int) -> Packet:
        """A download; the same object for all jobs that it was sent to."""
        if address not in self.downs:
            if len(self.downs) == MAX_CACHED_PACKETS:
                self.downs.clear()
            self.downs[address] = self._here(self.theirs.get(address))
        return self.downs[address]

    def _here(self, pytree: Any) -> Any:
        """The same pytree on the worker's torch device."""
        return move_to(pytree, self.world.torch_device)

    def _commit(self, position: int, job: Job, finished: FinishedJob, report: JobReport, last: bool) -> None:
        """Writes down what became of a job. `last`: no other job of its node is left."""
        own, residual = self.world.states.get(job.device), self.world.states.residual(job.device)
        partial_result = self.combiner.partial_result(job.node) if job.combine else None
        used = report.problem is None
        if partial_result is not None and not last:
            small = partial_result.nbytes <= MAX_SIZE_RATIO * max(1, finished.up.nbytes)
            partial_result = partial_result if used and small else None

        def record() -> Record:
            return Record(
                position,
                report.seconds,
                report.size,
                report.problem,
                report.conflict,
                dict(report.upload.scalars) if used and job.combine else {},
                self._put_state(finished.own, own) if used else UNCHANGED,
                self._put_state(finished.residual, residual) if used else UNCHANGED,
                self.ours.put(finished.up) if used and partial_result is None else EMPTY,
                EMPTY if partial_result is None else self._put_partial_result(job.node, partial_result),
            )

        try:
            self.ours.commit(record())
        except ArenaFull:
            self._flush()
            try:
                self.ours.commit(record())
            except ArenaFull:
                size = self.ours.size
                raise RunError(f"what {job.device} sends and keeps needs more than {size} bytes") from None

    def _put_state(self, new: State, old: State) -> int:
        if new is old:
            return UNCHANGED
        return self.ours.put(new) if new else EMPTY

    def _put_partial_result(self, node: str, partial_result: Packet) -> int:
        slot = not self.latest_slot.get(node, False)
        if (node, slot) in self.slots:
            start, end = self.slots[node, slot]
            with suppress(ArenaFull):  # the partial result has grown: a new slot replaces the old one
                address, _ = self.ours.write(partial_result, start, end)
                self.latest_slot[node] = slot
                return address
        start = self.ours.top
        address, end = self.ours.write(partial_result, start)
        self.ours.top = end + SLOT_SLACK
        self.slots[node, slot], self.latest_slot[node] = (start, end + SLOT_SLACK), slot
        return address

    def _flush(self) -> None:
        """Has the parent read all records, and starts again at the front of the arena."""
        self.connection.send_bytes(b'{"full": true}')
        self.connection.recv_bytes()
        self.ours.reset()
        self.slots.clear()


def gpu_memory(torch_device: str) -> int:
    """Bytes of memory that a GPU has, used or not."""
    return int(torch.cuda.get_device_properties(torch_device).total_memory)


def _states_of_jobs() -> States:
    """The states of the current jobs. They are in the parent's arena, and so in memory, anyway."""
    return States(math.inf)
