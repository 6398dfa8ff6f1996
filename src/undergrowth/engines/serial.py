"""The serial engine: one job after the other, in this process. The reference for all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from undergrowth.engines.memory import keep_memory
from undergrowth.engines.world import Job, Outcome, Settings, World, do, settled


class Serial:
    def __init__(self, settings: Settings | None = None) -> None:
        """It has nothing to set."""

    def open(self, world: World) -> None:
        keep_memory()
        self.world = world

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        states = self.world.states
        done = ((job, do(self.world, job, states.get(job.device), states.residual(job.device))) for job in jobs)
        return settled(self.world, done)

    def facts(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        """Nothing is held."""
