"""Share: what one worker has to do in a round, and what the parent has of it so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from undergrowth.core import Packet, Reducer, State, fold
from undergrowth.engines.processes.arena import Arena
from undergrowth.engines.processes.worker import EMPTY, UNCHANGED, Record
from undergrowth.engines.states import States
from undergrowth.engines.world import Job


class Result(NamedTuple):
    """A job that was done. `aside` has what its device keeps, under the job's position."""

    record: Record
    aside: States
    upload: Packet | None

    def kept(self, states: States, device: str) -> tuple[State, State]:
        """What the device keeps from now on, if it had what is in `states`."""
        name = str(self.record.position)
        own = states.get(device) if self.record.own == UNCHANGED else self.aside.get(name)
        return own, states.residual(device) if self.record.residual == UNCHANGED else self.aside.residual(name)


class Share:
    """`jobs`: all of the round; `left`: the positions of this worker's, in the order in which it does them.

    `aside`: where to put what devices keep, until it is known of all jobs: it may be more than fits into memory.
    """

    def __init__(self, jobs: Sequence[Job], left: Sequence[int], aside: States) -> None:
        self.jobs = jobs
        self.left = list(left)
        self.aside = aside
        self.results: dict[int, Result] = {}
        self.totals: dict[str, Packet] = {}
        self.deaths = 0  # of workers in a row without a finished job
        self.finished = 0.0
        self._later: dict[str, list[tuple[str, Packet]]] = {}  # node → uploads that came after its total

    @property
    def seconds(self) -> float:
        return sum(result.record.seconds for result in self.results.values())

    def take(self, arena: Arena) -> None:
        """Takes all that was committed out of the worker's arena, and empties it."""
        wheres: dict[str, int] = {}
        for line in arena.committed():
            record = Record(*line)
            job = self.jobs[record.position]
            upload: Packet | None = arena.take(record.upload) if record.upload else None
            if job.fold and upload is not None:
                self._later.setdefault(job.node, []).append((job.device, upload))
                upload = None
            if record.total:
                wheres[job.node] = record.total
                self._later.pop(job.node, None)
            self.aside.put(str(record.position), _kept(arena, record.own), _kept(arena, record.residual))
            self.results[record.position] = Result(record, self.aside, upload)
            self.deaths = 0
        for node, where in wheres.items():
            self.totals[node] = arena.take(where)
        self.left = [position for position in self.left if position not in self.results]
        arena.reset()

    def total(self, node: str, reducer: Reducer) -> Packet | None:
        """All uploads of a node that were combined so far."""
        for device, upload in self._later.pop(node, ()):
            self.totals[node] = fold(reducer, self.totals.get(node), device, upload)
        return self.totals.get(node)


def _kept(arena: Arena, where: int) -> State:
    state: State = {} if where in (UNCHANGED, EMPTY) else arena.take(where)
    return state
