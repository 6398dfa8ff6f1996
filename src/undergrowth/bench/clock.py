"""`undergrowth bench clock`: the cost of the virtual clock, the ledger and the store.

A million device-rounds without training must take at most 20 seconds and 2 GB. When the FEMNIST network is trained, the
bookkeeping must add at most 5 % to the time inside the engine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter, process_time

from undergrowth.bench import Measurement
from undergrowth.bench.loop import one_thread, simulate_fedavg
from undergrowth.bench.peak_memory import peak_memory
from undergrowth.bench.workload import InMemoryPopulation, SyntheticPopulation
from undergrowth.core import Packet
from undergrowth.engines import Job, Outcome, SerialEngine, World
from undergrowth.engines.memory import collect_garbage_less_often
from undergrowth.runs.store import Store

DEVICES, ROUNDS = 1000, 1000
TRAINED_DEVICES, TRAINED_ROUNDS = 50, 3
MAX_SECONDS, MAX_BYTES = 20.0, 2e9
MAX_OVERHEAD = 1.05  # seconds of a round over those inside the engine


def measure() -> Iterator[Measurement]:
    with one_thread():
        seconds, memory = bookkeeping()
        yield Measurement("a million device-rounds", "seconds, against the bar", seconds, MAX_SECONDS, 1.0, True)
        yield Measurement("its peak memory", "bytes, against the bar", memory, MAX_BYTES, 1.0, True)
        ours, engine = training_overhead()
        yield Measurement(
            "a round of cnn, 50 devices", "CPU seconds, against the engine", ours, engine, MAX_OVERHEAD, True
        )


class IdleEngine:
    """An engine that trains nothing: every device returns the weights that it received."""

    def open(self, world: World) -> None:
        """Nothing to do."""

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        up = Packet(jobs[0].down.tensors, {"samples": float(len(jobs))})
        size = up.nbytes
        devices = [job.device for job in jobs]
        scalars = {device: {"samples": 1.0} for device in devices}
        yield Outcome(jobs[0].node, up, dict.fromkeys(devices, size), {}, scalars, combined=True)

    def facts(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        """Nothing to do."""


def bookkeeping() -> tuple[float, float]:
    """Wall seconds and peak bytes of a million jobs that train nothing, on a mixed fleet, with ledger and store."""
    simulation = simulate_fedavg(SyntheticPopulation(DEVICES), "logistic", IdleEngine(), "mixed-edge", ROUNDS)
    with tempfile.TemporaryDirectory() as folder, collect_garbage_less_often():  # as a run does
        store = Store(Path(folder), create=True)
        began = perf_counter()
        for ends in simulation.rounds():
            row = dict.fromkeys(("accuracy", "loss", "wall_seconds", "flops", "joules", "bytes_down", "bytes_up"), 0.0)
            counts = {"arrived": len(ends[0].arrived), "lost": 0, "refused": 0, "late": 0}
            facts = {"round": ends[0].round + 1, "simulated_seconds": simulation.now, **row, **counts}
            store.finish_round("bench", [facts], simulation.ledger.take(), None)
        seconds = perf_counter() - began
        store.close()
    return seconds, float(peak_memory())


def training_overhead() -> tuple[float, float]:
    """CPU seconds of a round, in total and inside the engine."""
    population = InMemoryPopulation.of(SyntheticPopulation(TRAINED_DEVICES))
    engine = TimedEngine()
    simulation = simulate_fedavg(population, "cnn", engine, "mixed-edge", TRAINED_ROUNDS + 1)
    running = simulation.rounds()
    next(running)  # traces and warms up
    engine.seconds, began = 0.0, process_time()
    for _ in running:
        simulation.ledger.take()
    return (process_time() - began) / TRAINED_ROUNDS, engine.seconds / TRAINED_ROUNDS


class TimedEngine(SerialEngine):
    """Measures its own CPU time."""

    seconds = 0.0

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        began = process_time()
        outcomes = list(super().run(jobs))
        self.seconds += process_time() - began
        yield from outcomes
