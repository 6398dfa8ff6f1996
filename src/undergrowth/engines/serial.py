"""One job after the other, in this process. The reference for all other engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from undergrowth.engines.combining import combine_finished
from undergrowth.engines.jobs import run_job
from undergrowth.engines.memory import keep_freed_memory
from undergrowth.engines.world import EngineSettings, Job, Outcome, World


class SerialEngine:
    """Runs one job after the other."""

    def __init__(self, settings: EngineSettings | None = None) -> None:
        """It has no options."""

    def open(self, world: World) -> None:
        keep_freed_memory()
        self.world = world

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        return combine_finished(self.world, ((job, run_job(self.world, job)) for job in jobs))

    def facts(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        """There is nothing to release."""
