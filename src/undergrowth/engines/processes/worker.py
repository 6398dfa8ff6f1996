"""The worker of the engine `processes`: does its share of a round, job by job, and notes each one when it is done.

A share comes as one message. After every job the worker appends a record to its arena, so that whatever becomes of it,
the parent knows what was done: what the device keeps, its upload if that is not combined with others, and else the
total so far. Totals alternate between two slots, so the last one that a record speaks of is always whole.
"""

from __future__ import annotations

import json
import math
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any, NamedTuple

import torch

from undergrowth.core import Context, InputError, LoopClient, Packet, RunError, State, Updates, moved
from undergrowth.engines.processes.arena import Arena, Full
from undergrowth.engines.processes.profiling import MOST_STEPS, measured
from undergrowth.engines.states import States
from undergrowth.engines.vector.stacking import Stacking
from undergrowth.engines.world import Done, Folding, Job, Settings, World, do, set_torch

UNCHANGED, EMPTY = -1, 0  # in place of where a state is
LARGER = 4  # a total is noted after each job unless it is so many times larger than the upload; then the upload is
MOST_PACKETS = 16  # that are kept ready: on a GPU they take its memory
SLACK = 1024  # bytes by which a slot is larger than its first total: numbers in it may get longer

FORKED_TOO_LATE = (
    "on a machine with a GPU, run.engine 'processes' cannot start in a process in which torch has trained before: "
    "start the run in a fresh process, or write serial or vector"
)


class Record(NamedTuple):
    """A job that is done. `own`, `residual`, `upload` and `total` say where these are in the worker's arena."""

    position: int
    seconds: float
    size: int
    problem: str | None
    uncombined: bool  # refused only because it does not go with those before it
    scalars: dict[str, float]
    own: int
    residual: int
    upload: int
    total: int


class Entry(NamedTuple):
    """A job in a message. `packet`, `own` and `residual` say where these are in the parent's arena."""

    position: int
    node: str
    device: str
    packet: int
    context: Sequence[Any]
    fold: bool
    limit: int | None
    own: int
    residual: int


class Worker:
    """`theirs`: the parent's arena, which is only read here. `ours`: this worker's, which the parent only reads."""

    def __init__(self, world: World, settings: Settings, theirs: Arena, ours: Arena, line: Connection) -> None:
        self.world = replace(world, states=_states())
        self.settings = settings
        self.theirs, self.ours, self.line = theirs, ours, line
        self.started = False
        self.stacking: Stacking | None = None
        self.downs: dict[int, Packet] = {}  # where → a packet of this share that was read
        self.sums: dict[str, Folding] = {}
        self.slots: dict[tuple[str, bool], tuple[int, int]] = {}  # node and side → where a slot begins and ends
        self.side: dict[str, bool] = {}  # node → the slot that was written last

    def serve(self) -> None:
        """Share after share, until the line ends. The first message says which device it is on."""
        with suppress(EOFError, OSError):  # the parent has hung up: nobody waits for this worker any more
            while True:
                message = json.loads(self.line.recv_bytes())
                try:
                    self._start(message.pop("device"))
                    answer = self._tried(message["job"]) if "job" in message else self._share(**message)
                except Exception as error:
                    kind, trace = isinstance(error, InputError), traceback.format_exc()
                    answer = {"error": str(error), "input": kind, "trace": trace}
                self.line.send_bytes(json.dumps(answer).encode())

    def _start(self, device: str) -> None:
        if self.started:
            return
        set_torch(self.settings.tf32)
        probe = torch.ones((), requires_grad=True)
        try:
            torch.autograd.grad(probe.exp(), [probe])
        except RuntimeError as error:
            raise RunError(FORKED_TOO_LATE if "fork" in str(error) else str(error)) from None
        try:
            self.world = replace(self.world, task=self.world.task.to(device), device=device)
        except Exception as error:
            raise RunError(f"a worker on {device} could not start: {error}") from error
        self.started = True

    def _tried(self, entry: Sequence[Any]) -> dict[str, Any]:
        """What a job takes of this worker's GPU. Nothing comes of the job itself."""
        job, states = self._job(Entry(*entry)), self.world.states
        if isinstance(self.world.client, LoopClient | Updates):
            job = job._replace(limit=min(job.limit or MOST_STEPS, MOST_STEPS))

        def work() -> None:
            done = do(self.world, job, states.get(job.device), states.residual(job.device))
            moved(done.up, "cpu")  # where the parent takes it from

        return {"profile": asdict(measured(self.world.device, work))}

    def _share(self, jobs: Sequence[Any], totals: dict[str, int], top: int) -> dict[str, Any]:
        self.ours.top = top
        self.slots.clear()
        self.downs.clear()
        self.sums = {node: self._folding(node, self.ours.take(where)) for node, where in totals.items()}
        entries = {entry.device: entry for entry in (Entry(*entry) for entry in jobs)}
        left = Counter(entry.node for entry in entries.values())
        began = perf_counter()
        for job, done in self._done(entries.values()):
            entry = entries[job.device]
            left[entry.node] -= 1
            try:
                self._note(entry, done, began, last=not left[entry.node])
            except (InputError, RunError):
                raise
            except Exception as error:
                raise RunError(f"{entry.device} failed in round {job.context.round + 1}: {error!r}") from error
            if self.ours.crowded:
                self._flush()
            began = perf_counter()
        return {"finished": began}

    def _done(self, entries: Iterable[Entry]) -> Iterator[tuple[Job, Done]]:
        """The jobs of a share: one by one, or, where the settings say so, in stacks."""
        if not self.settings.stack:
            for entry in entries:
                states = self.world.states = _states()
                job = self._job(entry)
                yield job, do(self.world, job, states.get(job.device), states.residual(job.device))
            return
        self.world.states = _states()
        if self.stacking is None:
            self.stacking = Stacking(self.world, self.settings)
        yield from self.stacking.done([self._job(entry) for entry in entries])

    def _job(self, entry: Entry) -> Job:
        device = self.world.device
        own = moved(self.theirs.get(entry.own), device) if entry.own else {}
        residual = moved(self.theirs.get(entry.residual), device) if entry.residual else {}
        self.world.states.put(entry.device, own, residual)
        context = Context(*entry.context)
        return Job(entry.node, entry.device, self._down(entry.packet), context, entry.fold, entry.limit)

    def _down(self, where: int) -> Packet:
        """A packet that was sent; the same object for all jobs that it was sent to."""
        if where not in self.downs:
            if len(self.downs) == MOST_PACKETS:
                self.downs.clear()
            self.downs[where] = moved(self.theirs.get(where), self.world.device)
        return self.downs[where]

    def _folding(self, node: str, total: Packet | None = None) -> Folding:
        return Folding(node, self.world.servers[node], moved(total, self.world.device))

    def _note(self, entry: Entry, done: Done, began: float, last: bool) -> None:
        """Combines the upload if it may be, and writes down what came of the job."""
        own, residual = self.world.states.get(entry.device), self.world.states.residual(entry.device)
        problem, uncombined, total = done.problem, False, None
        if entry.fold:
            folding = self.sums.setdefault(entry.node, self._folding(entry.node))
            if not folding.add(entry.device, done) and problem is None:
                problem = folding.refused[entry.device]
                uncombined = self._lifts(entry, done.up)
            total = folding.total
        used = problem is None
        whole = total is not None and (last or (used and total.nbytes <= LARGER * max(1, done.up.nbytes)))

        def record() -> Record:
            return Record(
                entry.position,
                perf_counter() - began,
                done.size,
                problem,
                uncombined,
                dict(done.up.scalars) if used and entry.fold else {},
                self._kept(done.own, own) if used else UNCHANGED,
                self._kept(done.residual, residual) if used else UNCHANGED,
                self.ours.put(done.up) if used and not whole else EMPTY,
                self._put_total(entry.node, total) if whole and total is not None else EMPTY,
            )

        try:
            self.ours.commit(record())
        except Full:
            self._flush()
            try:
                self.ours.commit(record())
            except Full:
                size = self.ours.size
                raise RunError(f"what {entry.device} sends and keeps needs more than {size} bytes") from None

    def _kept(self, new: State, old: State) -> int:
        if new is old:
            return UNCHANGED
        return self.ours.put(new) if new else EMPTY

    def _put_total(self, node: str, total: Packet) -> int:
        side = not self.side.get(node, False)
        if (node, side) in self.slots:
            start, end = self.slots[node, side]
            try:
                where, _ = self.ours.write(total, start, end)
                self.side[node] = side
                return where
            except Full:
                pass  # it has grown: a new slot takes the place of the old one
        start = self.ours.top
        where, end = self.ours.write(total, start)
        self.ours.top = end + SLACK
        self.slots[node, side], self.side[node] = (start, end + SLACK), side
        return where

    def _lifts(self, entry: Entry, up: Packet) -> bool:
        """Whether an upload would be fine if it came first."""
        try:
            self.world.servers[entry.node].reducer.lift(entry.device, up, 0)
        except (ValueError, KeyError):
            return False
        return True

    def _flush(self) -> None:
        """Has the parent take all that was noted, and starts at the front again."""
        self.line.send_bytes(b'{"full": true}')
        self.line.recv_bytes()
        self.ours.reset()
        self.slots.clear()


def _states() -> States:
    """Those of the jobs at hand. They are in the parent's arena, and so in memory, anyway."""
    return States(math.inf)
