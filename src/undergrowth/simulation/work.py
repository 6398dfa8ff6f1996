"""The work of devices: hands jobs to the engine when their results are needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from undergrowth.engines import Engine
from undergrowth.simulation.pending import Pending


@dataclass
class Work:
    """The jobs that an engine has done so far."""

    engine: Engine
    pending: Pending
    jobs_done: int = 0
    seconds: float = 0.0  # wall time of the engine
    facts: dict[str, float] = field(default_factory=dict)  # of the last jobs

    def run(self, now: float) -> None:
        """Has the engine do all jobs that are due by now."""
        pending = self.pending
        if not pending.waiting:
            return
        devices = [device for device, due in pending.waiting.items() if due <= now]
        jobs = []
        for device in devices:
            del pending.waiting[device]
            ask = pending.asks[device]
            assert ask.job is not None
            jobs.append(ask.job)
            ask.job = None
        began = perf_counter()
        for outcome in self.engine.run(jobs):
            if outcome.combined:
                pending.combined.setdefault(outcome.node, []).append(outcome)
            else:
                for device in (*outcome.sent, *outcome.refused):
                    pending.asks[device].outcome = outcome
        self.seconds += perf_counter() - began
        self.jobs_done += len(jobs)
        self.facts = dict(self.engine.facts())
