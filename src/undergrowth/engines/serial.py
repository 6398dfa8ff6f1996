"""The serial engine: one job after the other, in this process. The reference for all others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from undergrowth.engines.world import Folding, Job, Outcome, World, do


class Serial:
    def open(self, world: World) -> None:
        self.world = world

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        sums: dict[str, Folding] = {}
        for job in jobs:
            up, problem = do(self.world, job)
            if job.fold:
                if job.node not in sums:
                    sums[job.node] = Folding(job.node, self.world.servers[job.node])
                sums[job.node].add(job.device, up, problem)
            elif problem is None:
                yield Outcome(job.node, up, {job.device: up.nbytes})
            else:
                yield Outcome(job.node, None, refused={job.device: problem})
        for total in sums.values():
            yield total.outcome()

    def close(self) -> None:
        """Nothing is held."""
