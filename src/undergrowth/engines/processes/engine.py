"""The engine `processes`: worker processes that live as long as the run, each with a share of every round.

The whole round is dealt out before it starts, in one message for each worker (push placement). What was sent and what
devices keep lies in shared memory; the samples are those that the workers inherited. Workers combine uploads as the
method says, so one total for each comes back. A worker that dies is replaced and the new one goes on where it was: the
result is the same, bit for bit, and only the job that was under way is done again.
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
from undergrowth.engines.placement import placement
from undergrowth.engines.processes.arena import Arena, Full, Place, arenas
from undergrowth.engines.processes.crew import Crew
from undergrowth.engines.processes.gathering import gather, quality, results_of
from undergrowth.engines.processes.headcount import Profile, dealt, in_turn, on_gpu
from undergrowth.engines.processes.share import Result, Share
from undergrowth.engines.processes.worker import EMPTY, Entry, Worker
from undergrowth.engines.states import States
from undergrowth.engines.world import Job, Outcome, Settings, World

MOST_DEATHS = 3  # of workers in a row at the same job


class Processes:
    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        devices, workers = self.settings.devices, self.settings.workers
        self._gpus = [device for device in dict.fromkeys(devices) if on_gpu(device)] if workers is None else []
        # The device of every worker. Where there is none yet, `settle` finds out how many a GPU bears.
        self.kinds = [] if self._gpus else in_turn(devices, workers or cores())
        self.placement = placement(self.settings.placement)
        self._facts: dict[str, float] = {}
        self._crew: Crew | None = None

    def open(self, world: World) -> None:
        self.world = world
        self._start()

    def _start(self) -> Crew:
        self.close()
        most = len(self.kinds) or max(cores(), len(self.settings.devices))
        self._ours, *self._theirs = arenas(1 + most)
        self._crew = Crew(partial(serve, self.world, self.settings, self._ours, self._theirs))
        # Also when nobody closes this engine: when it is thrown away, and at the end of the program.
        self._closing = weakref.finalize(self, self._crew.close)
        return self._crew

    def close(self) -> None:
        if self._crew is not None:
            self._closing()
            self._crew = None

    @property
    def pids(self) -> dict[int, int]:
        """The processes of the workers that were started so far, by number."""
        return self._crew.pids if self._crew else {}

    def facts(self) -> Mapping[str, float]:
        return self._facts

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        while jobs:
            try:
                self.settle(jobs)
                entries = self._written(jobs)
                wave, jobs = jobs[: len(entries)], jobs[len(entries) :]
                outcomes = gather(self.world, wave, self._done(wave, entries), self._apart)
            except BaseException:
                self.close()  # workers may be in the middle of something that nobody waits for any more
                raise
            yield from outcomes

    # How many workers ----------------------------------------------------------------------------------------

    def settle(self, jobs: Sequence[Job]) -> list[str]:
        """Finds out how many workers each GPU gets, if that is open; a sentence for each GPU says what came of it."""
        if self.kinds:
            return []
        if self.settings.stack:
            # One worker computes as many clients at once as fill the GPU, and looks itself how many fit into memory.
            most, why = dict.fromkeys(self._gpus, 1), dict.fromkeys(self._gpus, "it stacks its clients")
        else:
            profiles = self._profiled(sorted(jobs, key=self._batches)[len(jobs) // 2])
            most = {device: profile.workers for device, profile in profiles.items()}
            why = {device: profile.told() for device, profile in profiles.items()}
        self.kinds = dealt(self.settings.devices, most, cores())
        counts = {device: self.kinds.count(device) for device in self._gpus}
        return [
            f"processes: {count} {'worker' if count == 1 else 'workers'} on {device}: {why[device]}"
            for device, count in counts.items()
        ]

    def _profiled(self, job: Job) -> dict[str, Profile]:
        """What a worker takes of each GPU, from workers that are there for that only. All at once, as in a round."""
        (entry,) = self._written([job])
        crew, profiles = self._crew, {}
        assert crew is not None
        for number, device in enumerate(self._gpus):
            crew.send(number, json.dumps({"device": device, "job": entry}).encode())
        for number, device in enumerate(self._gpus):
            try:
                message = json.loads(crew.receive(number))
            except (EOFError, OSError):
                raise RunError(f"a worker on {device} died when it tried out the job of {job.device}") from None
            if "error" in message:
                raise _error(message)
            profiles[device] = Profile(**message["profile"])
            crew.drop(number)
        return profiles

    # Handing out ---------------------------------------------------------------------------------------------

    def _written(self, jobs: Sequence[Job]) -> list[Entry]:
        """Writes what jobs need into shared memory, of as many as there is room for."""
        if self._crew is None:
            self._start()
        arena, states = self._ours, self.world.states
        arena.reset()
        seen: dict[int, Place] = {}  # a server sends one model to many devices
        packets: dict[int, int] = {}
        entries: list[Entry] = []
        for position, job in enumerate(jobs):
            own, residual = states.get(job.device), states.residual(job.device)
            try:
                if id(job.down) not in packets:
                    packets[id(job.down)] = arena.put(job.down, seen)
                kept = [arena.put(state) if state else EMPTY for state in (own, residual)]
            except Full:
                if entries:
                    break
                raise RunError(f"what {job.device} is sent needs more than {arena.size} bytes") from None
            where = packets[id(job.down)]
            entries.append(Entry(position, job.node, job.device, where, job.context, job.fold, job.limit, *kept))
            if arena.crowded:
                break
        return entries

    def _done(self, jobs: Sequence[Job], entries: Sequence[Entry]) -> list[Share]:
        """Has all these jobs done."""
        batches = [self._batches(job) for job in jobs]
        placed = self.placement.place(batches, self.kinds)
        aside = States(folder=self.world.states.folder)
        shares = {number: Share(jobs, positions, aside) for number, positions in enumerate(placed) if positions}
        crew, busy = self._crew, dict(shares)
        assert crew is not None
        for number, share in shares.items():
            self._hand(crew, number, share, entries)
        while busy:
            for number in crew.waiting(busy):
                if self._heard(crew, number, busy[number], entries):
                    del busy[number]
        self._learn(shares, batches)
        return list(shares.values())

    def _hand(self, crew: Crew, number: int, share: Share, entries: Sequence[Entry], again: bool = False) -> None:
        """Gives a worker the rest of its share, with the totals of what was done of it."""
        while share.left:
            if again:
                self._died(share)
            arena = self._theirs[number]
            arena.reset()
            totals: dict[str, int] = {}
            for node in dict.fromkeys(share.jobs[position].node for position in share.left):
                total = share.total(node, self.world.servers[node].reducer)
                if total is not None:
                    totals[node] = arena.put(total)
            jobs = [entries[position] for position in share.left]
            try:
                message = {"device": self.kinds[number], "jobs": jobs, "totals": totals, "top": arena.top}
                crew.send(number, json.dumps(message).encode())
                return
            except OSError:
                crew.drop(number)
                again = True

    def _heard(self, crew: Crew, number: int, share: Share, entries: Sequence[Entry]) -> bool:
        """Takes in what a worker says, or that it is gone. True: its share is done."""
        try:
            message = json.loads(crew.receive(number))
        except (EOFError, OSError):
            crew.drop(number)
            share.take(self._theirs[number])
            share.finished = perf_counter()
            self._hand(crew, number, share, entries, again=True)
            return not share.left
        if "error" in message:
            raise _error(message)
        share.take(self._theirs[number])
        if "finished" in message:
            share.finished = message["finished"]
            return True
        with suppress(OSError):  # it is gone, which its line will say
            crew.send(number, b"go on")
        return False

    def _died(self, share: Share) -> None:
        share.deaths += 1
        if share.deaths == MOST_DEATHS:
            job = share.jobs[share.left[0]]
            raise RunError(
                f"{job.device} ended its worker process {MOST_DEATHS} times in a row in round "
                f"{job.context.round + 1}; perhaps it needs more memory than there is"
            )

    def _batches(self, job: Job) -> int:
        train = self.world.task.train
        batches = -(-self.world.shards.size(job.device) // train.batch) * train.epochs
        return max(1, batches if job.limit is None else min(batches, job.limit))

    def _learn(self, shares: Mapping[int, Share], batches: Sequence[int]) -> None:
        """Tells the placement what every job took, and notes how good it was."""
        for number, share in shares.items():
            for position, result in share.results.items():
                self.placement.observe(self.kinds[number], batches[position], result.record.seconds)
        self._facts = quality(self.kinds, shares, batches)

    def _apart(self, jobs: Sequence[Job]) -> list[Result]:
        """What comes of these jobs when no uploads are combined."""
        results: list[Result] = []
        jobs = [job._replace(fold=False) for job in jobs]
        while jobs:
            entries = self._written(jobs)
            wave, jobs = jobs[: len(entries)], jobs[len(entries) :]
            done = results_of(self._done(wave, entries))
            results += [done[position] for position in range(len(wave))]
        return results


def serve(
    world: World, settings: Settings, theirs: Arena, ours: Sequence[Arena], number: int, line: Connection
) -> None:
    """What a worker does in its own process."""
    Worker(world, settings, theirs, ours[number], line).serve()


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _error(message: Mapping[str, Any]) -> Exception:
    """What a client raised in a worker, as it would be raised here."""
    error = (InputError if message["input"] else RunError)(message["error"])
    error.add_note(f"in a worker process:\n{message['trace']}")
    return error
