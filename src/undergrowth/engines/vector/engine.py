"""Many clients at once as one batched computation, in this process, on a CPU or a GPU.

Clients that cannot be stacked run one by one; the history counts them as `not_stacked`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from undergrowth.engines.combining import combine_finished
from undergrowth.engines.memory import keep_freed_memory
from undergrowth.engines.vector.recording import RecordingMemory
from undergrowth.engines.vector.stack_runner import StackRunner
from undergrowth.engines.vector.stacked_loops import StackedLoops
from undergrowth.engines.world import EngineSettings, Job, Outcome, World


class VectorEngine:
    """Runs jobs in stacks, as many clients at once as fit into memory."""

    def __init__(self, settings: EngineSettings | None = None) -> None:
        self.settings = settings or EngineSettings()
        self._memory = RecordingMemory()
        self.run_loops = StackedLoops(self.settings.chunk, self._memory)

    def open(self, world: World) -> None:
        keep_freed_memory()
        self.world = world
        self.stack_runner = StackRunner(world, self.settings, self._memory)

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        return combine_finished(self.world, self.stack_runner.run(jobs))

    def facts(self) -> Mapping[str, float]:
        return self.stack_runner.counts

    def close(self) -> None:
        self.run_loops.close()
        if hasattr(self, "stack_runner"):
            self.stack_runner.close()
