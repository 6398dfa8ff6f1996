"""The Ray engine: device work on the workers of a Ray cluster, on one machine or many (extra `ray`).

A round's jobs are dealt to the workers in one message each. Data and model code lie in the object store once for each
machine; each worker combines what its devices send, one worker of each machine combines the sums of its neighbours, and
one sum a machine crosses the network. A worker or a machine that dies is replaced, and only its jobs are done again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from undergrowth.core import InputError, Packet, moved
from undergrowth.engines.placement import placement
from undergrowth.engines.world import Done, Folding, Job, Outcome, Settings, World

if TYPE_CHECKING:  # Ray is loaded when it is used
    from undergrowth.engines.cluster.crew import Call, Crew, Member
    from undergrowth.engines.cluster.worker import Report

V = TypeVar("V")


class RayCluster:
    def __init__(self, settings: Settings | None = None) -> None:
        if find_spec("ray") is None:
            raise InputError("run.engine 'ray' needs the extra: pip install 'undergrowth[ray]'")
        self.settings = settings or Settings()
        self._placement = placement(self.settings.placement)
        self._crew: Crew | None = None
        self._facts: dict[str, float] = {}

    def open(self, world: World) -> None:
        """Keeps the world. Ray itself is started or joined for the first job: a plan or a refused run needs none."""
        self.world = world

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        if not jobs:
            return
        calls, totals = self._round(jobs)
        if totals is None:
            # Which of two uploads that do not go together is refused hangs on which came first.
            calls, _ = self._round([job._replace(fold=False) for job in jobs])
            totals = self._one_by_one(jobs, calls)
        yield from self._settle(jobs, calls, totals)

    def _round(self, jobs: Sequence[Job]) -> tuple[list[Call], dict[str, Outcome] | None]:
        """Has the jobs done. None: some uploads do not go together."""
        from undergrowth.engines.cluster.crew import Crew
        from undergrowth.engines.cluster.worker import Unlike

        if self._crew is None:
            self._crew = Crew(self.settings, self.world)
        members = self._crew.muster()
        batches = [self._batches(job) for job in jobs]
        calls = self._calls(jobs, members, self._placement.place(batches, [member.node for member in members]))
        try:
            totals: dict[str, Outcome] | None = self._crew.do(calls)
        except Unlike:
            totals = None
        for call, report in _reports(calls):
            for number, seconds in report.seconds.items():
                self._placement.observe(call.member.node, batches[number], seconds)
        finished = [call.finished for call in calls]
        self._facts = {"workers": float(len(members)), "workers_timedelta": max(finished) - min(finished)}
        failures = [report.failure for _, report in _reports(calls) if report.failure is not None]
        if failures:
            raise min(failures, key=lambda failure: failure[0])[1]
        return calls, None if any(report.unlike for _, report in _reports(calls)) else totals

    def facts(self) -> Mapping[str, float]:
        return self._facts

    def close(self) -> None:
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.close()

    def _batches(self, job: Job) -> int:
        train = self.world.task.train
        steps = train.epochs * math.ceil(self.world.shards.size(job.device) / train.batch)
        return steps if job.limit is None else min(steps, job.limit)

    def _calls(self, jobs: Sequence[Job], members: Sequence[Member], shares: Sequence[Sequence[int]]) -> list[Call]:
        """One message for each worker that has something to do."""
        import ray

        from undergrowth.engines.cluster.crate import packed
        from undergrowth.engines.cluster.crew import Call
        from undergrowth.engines.cluster.worker import Order

        states = self.world.states
        stored: dict[int, Any] = {}  # a packet goes to many devices, and into the object store once
        calls = []
        for member, numbers in zip(members, shares):
            packets: dict[int, int] = {}
            orders = []
            for number in numbers:
                job = jobs[number]
                place = packets.setdefault(id(job.down), len(packets))
                if id(job.down) not in stored:
                    stored[id(job.down)] = ray.put(packed(job.down))
                kept = states.get(job.device), states.residual(job.device)
                orders.append(Order(number, job._replace(down=Packet()), place, *kept))
            if orders:
                devices = [order.job.device for order in orders]
                calls.append(Call(devices, member, packed(orders), [stored[packet] for packet in packets]))
        return calls

    def _one_by_one(self, jobs: Sequence[Job], calls: Sequence[Call]) -> dict[str, Outcome]:
        """Combines uploads here, in the order of their jobs."""
        single = _single(calls)
        sums: dict[str, Folding] = {}
        for number, job in enumerate(jobs):
            if job.fold:
                total = sums.setdefault(job.node, Folding(job.node, self.world.servers[job.node]))
                outcome = single[number]
                up, size = outcome.up or Packet(), outcome.sent.get(job.device, 0)
                total.add(job.device, Done(up, size, {}, {}, outcome.refused.get(job.device)))
        return {node: total.outcome() for node, total in sums.items()}

    def _settle(self, jobs: Sequence[Job], calls: Sequence[Call], totals: Mapping[str, Outcome]) -> Iterator[Outcome]:
        """Tells what came of the jobs in their own order, as if they had been done one after the other."""
        outcomes = _single(calls)
        kept = {device: states for _, report in _reports(calls) for device, states in report.kept.items()}
        device = self.world.device
        for number, job in enumerate(jobs):
            outcome = totals[job.node] if job.fold else outcomes[number]
            if job.device in outcome.sent:
                own, residual = kept[job.device]
                self.world.states.put(job.device, moved(own, device), moved(residual, device))
            if not job.fold:
                yield Outcome(job.node, moved(outcome.up, device), outcome.sent, outcome.refused)
        order = [job.device for job in jobs]
        for node in dict.fromkeys(job.node for job in jobs if job.fold):
            total = totals[node]
            yield Outcome(
                node,
                moved(total.up, device),
                _in_order(order, total.sent),
                _in_order(order, total.refused),
                _in_order(order, total.scalars),
                folded=True,
            )


def _reports(calls: Sequence[Call]) -> list[tuple[Call, Report]]:
    return [(call, call.report) for call in calls if call.report is not None]


def _single(calls: Sequence[Call]) -> dict[int, Outcome]:
    """The outcomes that stand alone, by the numbers of their jobs."""
    return {number: outcome for _, report in _reports(calls) for number, outcome in report.outcomes.items()}


def _in_order(devices: Sequence[str], by_device: Mapping[str, V]) -> dict[str, V]:
    return {device: by_device[device] for device in devices if device in by_device}
