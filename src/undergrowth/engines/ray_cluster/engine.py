"""Workers on a Ray cluster, on one machine or many. Needs the extra `ray`.

Each worker gets its jobs of a round in one message. Data and model code are in the object store once per machine. Each
worker combines the uploads of its jobs, one worker per machine merges the partial results of that machine, and one
partial result per machine crosses the network. A worker or a machine that dies is replaced, and only its jobs run
again. How many workers have joined decides which uploads are combined first, and so the last bits of a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from undergrowth.core import InputError, Packet, move_to
from undergrowth.engines.combining import RoundReport, gather_outcomes
from undergrowth.engines.jobs import count_batches
from undergrowth.engines.placement import placement
from undergrowth.engines.states import States
from undergrowth.engines.world import EngineSettings, Job, Outcome, World

if TYPE_CHECKING:  # Ray is imported when it is used
    from undergrowth.engines.ray_cluster.worker_pool import Call, Member, RayWorkerPool


class RayEngine:
    """Runs jobs on the workers of a Ray cluster."""

    def __init__(self, settings: EngineSettings | None = None) -> None:
        if find_spec("ray") is None:
            raise InputError("run.engine 'ray' needs the extra: pip install 'undergrowth[ray]'")
        self.settings = settings or EngineSettings()
        self._placement = placement(self.settings.placement)
        self._pool: RayWorkerPool | None = None
        self._facts: dict[str, float] = {}

    def open(self, world: World) -> None:
        """Keeps the world and joins the cluster of `run.address`, if any. A local Ray is started for the first job."""
        self.world = world
        if self.settings.address is not None:  # a wrong address is refused before the run is entered in the store
            self._pool = self._connect()

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        if jobs:
            yield from gather_outcomes(self.world, jobs, self._run_jobs)

    def facts(self) -> Mapping[str, float]:
        return self._facts

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _connect(self) -> RayWorkerPool:
        from undergrowth.engines.ray_cluster.worker_pool import RayWorkerPool

        return RayWorkerPool(self.settings, self.world)

    def _run_jobs(self, jobs: Sequence[Job]) -> RoundReport:
        if self._pool is None:
            self._pool = self._connect()
        members = self._pool.assemble()
        batches = [count_batches(self.world, job) for job in jobs]
        calls = self._calls(jobs, members, self._placement.place(batches, [member.machine for member in members]))
        torch_device = self.world.torch_device
        report = RoundReport(States(torch_device=torch_device, folder=self.world.states.folder))
        report.partial_results = move_to(self._pool.run(calls), torch_device)
        failures = []
        for call in calls:
            assert call.report is not None
            if call.report.failure is not None:
                failures.append(call.report.failure)
            for position, (one, own, residual) in call.report.jobs.items():
                self._placement.observe(call.member.machine, batches[position], one.seconds)
                one = one._replace(upload=move_to(one.upload, torch_device))
                report.add(position, one, move_to(own, torch_device), move_to(residual, torch_device))
        finish_times = [call.finish_time for call in calls]
        self._facts = {"workers": float(len(members)), "workers_timedelta": max(finish_times) - min(finish_times)}
        if failures:
            raise min(failures, key=lambda failure: failure[0])[1]
        return report

    def _calls(self, jobs: Sequence[Job], members: Sequence[Member], placed: Sequence[Sequence[int]]) -> list[Call]:
        """One call for each worker that has jobs."""
        import ray

        from undergrowth.engines.ray_cluster.serialization import serialize
        from undergrowth.engines.ray_cluster.worker import JobMessage
        from undergrowth.engines.ray_cluster.worker_pool import Call

        states = self.world.states
        stored: dict[int, Any] = {}  # a packet goes to many devices, and once into the object store
        calls = []
        for member, positions in zip(members, placed, strict=True):
            numbers: dict[int, int] = {}  # id of a download → its number in this call
            messages = []
            for position in positions:
                job = jobs[position]
                number = numbers.setdefault(id(job.down), len(numbers))
                if id(job.down) not in stored:
                    stored[id(job.down)] = ray.put(serialize(job.down))
                kept = states.get(job.device), states.residual(job.device)
                messages.append(JobMessage(position, job._replace(down=Packet()), number, *kept))
            if messages:
                devices = [message.job.device for message in messages]
                calls.append(Call(devices, member, serialize(messages), [stored[down] for down in numbers]))
        return calls
