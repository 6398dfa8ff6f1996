"""The jobs of one worker in a round, and what the parent has received of them so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from undergrowth.core import Packet, Server, State, add_upload
from undergrowth.engines.combining import JobReport, RoundReport
from undergrowth.engines.processes.arena import Arena
from undergrowth.engines.processes.worker import EMPTY, UNCHANGED, Record
from undergrowth.engines.world import Job


class WorkerJobs:
    """`jobs`: all jobs of the round; `positions`: those of this worker, in the order in which it runs them."""

    def __init__(self, jobs: Sequence[Job], positions: Sequence[int], report: RoundReport) -> None:
        self.jobs = jobs
        self.positions = positions
        self.left = list(positions)
        self.report = report
        self.deaths = 0  # of workers in a row without a finished job
        self.finish_time = 0.0
        self._partial_results: dict[str, Packet] = {}
        self._later: dict[str, list[tuple[str, Packet]]] = {}  # node → uploads that are not in its partial result

    @property
    def seconds(self) -> float:
        return sum(self.report.jobs[position].seconds for position in self.positions)

    def receive(self, arena: Arena) -> None:
        """Takes all committed records out of the worker's arena, and empties it."""
        addresses: dict[str, int] = {}
        for line in arena.committed():
            record = Record(*line)
            job = self.jobs[record.position]
            upload = Packet({}, record.scalars)
            if record.upload and job.combine:
                self._later.setdefault(job.node, []).append((job.device, arena.take(record.upload)))
            elif record.upload:
                upload = arena.take(record.upload)
            if record.partial_result:
                addresses[job.node] = record.partial_result
                self._later.pop(job.node, None)
            report = JobReport(upload, record.size, record.problem, record.conflict, record.seconds)
            self.report.add(record.position, report, _state(arena, record.own), _state(arena, record.residual))
            self.deaths = 0
        for node, address in addresses.items():
            self._partial_results[node] = arena.take(address)
        self.left = [position for position in self.left if position not in self.report.jobs]
        arena.reset()

    def partial_results(self, servers: Mapping[str, Server]) -> dict[str, Packet]:
        """The uploads that this worker has combined so far, by node."""
        for node, uploads in self._later.items():
            for device, upload in uploads:
                partial_result = self._partial_results.get(node)
                self._partial_results[node] = add_upload(servers[node].reducer, partial_result, device, upload)
        self._later = {}
        return self._partial_results


def _state(arena: Arena, address: int) -> State | None:
    if address == UNCHANGED:
        return None
    state: State = {} if address == EMPTY else arena.take(address)
    return state
