"""Combining uploads: in this process as jobs finish, or on workers whose partial results are then merged.

A worker adds the uploads of its jobs to one combiner per node and reports every job. The partial results of the workers
are merged in the order of the workers. If uploads of a node do not fit together, the node's jobs run again without
combining and are combined here in the order of the jobs, because which upload is refused must not depend on which
worker had it. The engines `processes` and `ray` share all of this and differ in how jobs and reports travel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from undergrowth.core import Packet, Server, State, WeightedMean, describe_misfit
from undergrowth.engines.jobs import FinishedJob
from undergrowth.engines.states import States
from undergrowth.engines.world import Job, Outcome, World

MAX_PENDING_UPLOADS = 64  # uploads that a GPU combines at once
MAX_PENDING_BYTES = 2**30  # bytes of uploads that wait for that

PartialResults = Mapping[str, Packet | None]  # node → its combined uploads; None: they do not fit together


class Combiner:
    """Combines the uploads of one node as they arrive; on a GPU, several at once.

    `partial_result`: uploads that are combined already, to which others are added.
    """

    def __init__(self, node: str, server: Server, partial_result: Packet | None = None) -> None:
        self.node = node
        self._reducer = server.reducer
        self._pending: list[Packet] = []  # not combined yet; the first one may be a partial result
        self._max_pending = 1
        self.sent: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.refused_bytes: dict[str, int] = {}
        self.scalars: dict[str, Mapping[str, float]] = {}
        self.conflicts: set[str] = set()  # devices refused only because their uploads do not fit the earlier ones
        if partial_result is not None:
            self._append(partial_result)

    @property
    def partial_result(self) -> Packet | None:
        if len(self._pending) == 2:
            self._pending = [self._reducer.merge(*self._pending)]
        elif len(self._pending) > 2 and isinstance(self._reducer, WeightedMean):
            self._pending = [self._reducer.merge_all(self._pending)]
        return self._pending[0] if self._pending else None

    def add(self, device: str, finished: FinishedJob) -> bool:
        """Adds one upload. False: it is refused, and `refused` says why."""
        problem = finished.problem
        if problem is None:
            try:
                one = self._reducer.lift(device, finished.up, 0)
                try:
                    self._append(one)
                except (ValueError, KeyError):
                    self.conflicts.add(device)
                    raise
            except (ValueError, KeyError) as error:
                problem = describe_misfit(error)
        if problem is not None:
            self.refused[device], self.refused_bytes[device] = problem, finished.size
            return False
        self.sent[device] = finished.size
        self.scalars[device] = finished.up.scalars
        return True

    def _append(self, one: Packet) -> None:
        if not self._pending:
            can_wait = type(self._reducer) is WeightedMean and _on_gpu(one)
            self._max_pending = min(MAX_PENDING_UPLOADS, MAX_PENDING_BYTES // max(1, one.nbytes)) if can_wait else 1
            self._pending = [one]
        elif self._max_pending > 2 and one.signature == self._pending[0].signature:
            self._pending.append(one)
            if len(self._pending) == self._max_pending:
                self._pending = [self.partial_result or one]  # now, while the GPU still computes other clients
        else:
            self._pending = [self._reducer.merge(self.partial_result or self._pending[0], one)]

    def outcome(self) -> Outcome:
        facts = self.sent, self.refused, self.scalars
        return Outcome(self.node, self.partial_result, *facts, combined=True, refused_bytes=self.refused_bytes)


def _on_gpu(packet: Packet) -> bool:
    return all(value.is_cuda for value in packet.tensors.values())


def combine_finished(world: World, finished_jobs: Iterable[tuple[Job, FinishedJob]]) -> Iterator[Outcome]:
    """The outcomes of jobs that this process has run. Stores what the devices keep."""
    combiners: dict[str, Combiner] = {}
    for job, finished in finished_jobs:
        if job.combine:
            if job.node not in combiners:
                combiners[job.node] = Combiner(job.node, world.servers[job.node])
            used = combiners[job.node].add(job.device, finished)
        else:
            used = finished.problem is None
            yield _single_outcome(job, finished.up, finished.size, finished.problem)
        if used:
            world.states.put(job.device, finished.own, finished.residual)
    for combiner in combiners.values():
        yield combiner.outcome()


def _single_outcome(job: Job, up: Packet, size: int, problem: str | None) -> Outcome:
    if problem is None:
        return Outcome(job.node, up, {job.device: size})
    return Outcome(job.node, None, refused={job.device: problem}, refused_bytes={job.device: size})


# On a worker ---------------------------------------------------------------------------------------------------


class JobReport(NamedTuple):
    """What a worker reports about one job. Tensors of an upload that was combined or refused are not in it."""

    upload: Packet
    size: int  # bytes of the upload on its link
    problem: str | None  # why the upload is refused
    conflict: bool  # whether it is refused only because it does not fit the earlier uploads of this worker
    seconds: float = 0.0  # that the job took


class WorkerCombiner:
    """The combiners of a worker, one per node. `partial_results`: those to continue from, by node."""

    def __init__(self, servers: Mapping[str, Server], partial_results: Mapping[str, Packet] | None = None) -> None:
        self._servers = servers
        given = partial_results or {}
        self._combiners = {node: Combiner(node, servers[node], packet) for node, packet in given.items()}

    def add(self, job: Job, finished: FinishedJob) -> JobReport:
        """Combines the upload if the job allows it."""
        problem, conflict = finished.problem, False
        if job.combine:
            if job.node not in self._combiners:
                self._combiners[job.node] = Combiner(job.node, self._servers[job.node])
            combiner = self._combiners[job.node]
            combiner.add(job.device, finished)
            problem, conflict = combiner.refused.get(job.device), job.device in combiner.conflicts
        upload = Packet({}, finished.up.scalars) if job.combine or problem is not None else finished.up
        return JobReport(upload, finished.size, problem, conflict)

    def partial_result(self, node: str) -> Packet | None:
        return self._combiners[node].partial_result if node in self._combiners else None

    def partial_results(self) -> dict[str, Packet]:
        """By node, without the nodes whose uploads were all refused."""
        found = {node: combiner.partial_result for node, combiner in self._combiners.items()}
        return {node: packet for node, packet in found.items() if packet is not None}


def merge_partial_results(servers: Mapping[str, Server], workers: Iterable[PartialResults]) -> dict[str, Packet | None]:
    """The partial results of several workers as one per node, merged in the order of `workers`."""
    merged: dict[str, Packet | None] = {}
    for partial_results in workers:
        for node, packet in partial_results.items():
            merged[node] = _merge(servers[node], merged[node], packet) if node in merged else packet
    return merged


def _merge(server: Server, first: Packet | None, second: Packet | None) -> Packet | None:
    if first is None or second is None:
        return None
    try:
        return server.reducer.merge(first, second)
    except (ValueError, KeyError):
        return None


# In the process that has the workers ---------------------------------------------------------------------------


@dataclass
class RoundReport:
    """What the workers report about jobs, by position in the list of jobs."""

    kept: States  # position → what its device keeps, if that changed; may be more than fits into memory
    jobs: dict[int, JobReport] = field(default_factory=dict)
    partial_results: PartialResults = field(default_factory=dict)
    _changed: dict[int, tuple[bool, bool]] = field(default_factory=dict)

    def add(self, position: int, report: JobReport, own: State | None, residual: State | None) -> None:
        """Adds the report of one job. `own`, `residual`: what the device keeps; None: as before."""
        self.jobs[position] = report
        self.kept.put(str(position), own or {}, residual or {})
        self._changed[position] = own is not None, residual is not None

    def states_of(self, position: int, device: str, before: States) -> tuple[State, State]:
        """Own state and residual of a device after its job, if it had those in `before`."""
        own_changed, residual_changed = self._changed[position]
        own = self.kept.get(str(position)) if own_changed else before.get(device)
        return own, self.kept.residual(str(position)) if residual_changed else before.residual(device)


def gather_outcomes(
    world: World, jobs: Sequence[Job], run_jobs: Callable[[Sequence[Job]], RoundReport]
) -> list[Outcome]:
    """Runs jobs on workers; returns the outcomes that the serial engine would, in the order of the jobs.

    Stores what the devices keep. `run_jobs` hands jobs to workers and returns what they report.
    """
    report = run_jobs(jobs)
    sources = {position: (report, position) for position in range(len(jobs))}  # where the report of a job is
    positions: dict[str, list[int]] = {}
    for position, job in enumerate(jobs):
        if job.combine:
            positions.setdefault(job.node, []).append(position)
    combined: dict[str, Outcome] = {}
    for node, of_node in positions.items():
        fits = report.partial_results.get(node, Packet()) is not None
        if fits and not any(report.jobs[position].conflict for position in of_node):
            combined[node] = _combined_outcome(node, jobs, of_node, report)
            continue
        again = run_jobs([jobs[position]._replace(combine=False) for position in of_node])
        combiner = Combiner(node, world.servers[node])
        for number, position in enumerate(of_node):
            one = again.jobs[number]
            combiner.add(jobs[position].device, FinishedJob(one.upload, one.size, {}, {}, one.problem))
            sources[position] = again, number
        combined[node] = combiner.outcome()
    single: list[Outcome] = []
    for position, job in enumerate(jobs):
        source, number = sources[position]
        if not job.combine:
            one = source.jobs[number]
            single.append(_single_outcome(job, one.upload, one.size, one.problem))
        outcome = combined[job.node] if job.combine else single[-1]
        if job.device in outcome.sent:
            world.states.put(job.device, *source.states_of(number, job.device, world.states))
    return [*single, *combined.values()]


def _combined_outcome(node: str, jobs: Sequence[Job], positions: Sequence[int], report: RoundReport) -> Outcome:
    reports = {jobs[position].device: report.jobs[position] for position in positions}
    used = {device: one for device, one in reports.items() if one.problem is None}
    return Outcome(
        node,
        report.partial_results.get(node),
        {device: one.size for device, one in used.items()},
        {device: one.problem for device, one in reports.items() if one.problem is not None},
        {device: one.upload.scalars for device, one in used.items()},
        combined=True,
        refused_bytes={device: one.size for device, one in reports.items() if one.problem is not None},
    )
