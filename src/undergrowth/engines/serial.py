"""The serial engine: one job after the other, in this process. The reference for all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from undergrowth.engines.world import Folding, Job, Outcome, Settings, World, do


class Serial:
    def __init__(self, settings: Settings | None = None) -> None:
        """It has nothing to set."""

    def open(self, world: World) -> None:
        self.world = world

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        states = self.world.states
        sums: dict[str, Folding] = {}
        for job in jobs:
            done = do(self.world, job, states.get(job.device), states.residual(job.device))
            used = done.problem is None
            if job.fold:
                if job.node not in sums:
                    sums[job.node] = Folding(job.node, self.world.servers[job.node])
                used = sums[job.node].add(job.device, done)
            elif done.problem is None:
                yield Outcome(job.node, done.up, {job.device: done.size})
            else:
                yield Outcome(job.node, None, refused={job.device: done.problem})
            if used:
                states.put(job.device, done.own, done.residual)
        for total in sums.values():
            yield total.outcome()

    def facts(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        """Nothing is held."""
