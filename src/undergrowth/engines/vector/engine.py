"""The vector engine: many clients at once as one batched computation, in this process, on a CPU or a GPU.

What cannot be stacked is done one by one; how many that were is in the record of every round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from undergrowth.engines.memory import keep_memory
from undergrowth.engines.vector.stacking import Stacking
from undergrowth.engines.world import Job, Outcome, Settings, World, settled


class Vector:
    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()

    def open(self, world: World) -> None:
        keep_memory()
        self.world = world
        self.stacking = Stacking(world, self.settings)

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        return settled(self.world, self.stacking.done(jobs))

    def facts(self) -> Mapping[str, float]:
        return self.stacking.counts

    def close(self) -> None:
        """Nothing is held."""
