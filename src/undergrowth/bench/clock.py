"""`undergrowth bench clock`: what the virtual clock, the ledger and the store cost.

A million device-rounds without any training must take at most 20 seconds and 2 GB; and beside real training of the
FEMNIST network the bookkeeping must be at most 5 %. The reference of the second is the time inside the engine.
"""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter, process_time

import torch

from undergrowth.bench import Measurement
from undergrowth.bench.workload import InMemory, Writers
from undergrowth.core import Model, Node, Packet, Task, Train
from undergrowth.devices import fleet
from undergrowth.engines import Job, Outcome, Serial, World
from undergrowth.methods import FedAvg
from undergrowth.models import builder
from undergrowth.runs.store import Store
from undergrowth.simulation import FleetClock, Simulation

DEVICES, ROUNDS = 1000, 1000
LONGEST, LARGEST = 20.0, 2e9
OVERHEAD = 1.05


def measure() -> Iterator[Measurement]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds, memory = bookkeeping()
        yield Measurement("a million device-rounds", "seconds, against the bar", seconds, LONGEST, 1.0, True)
        yield Measurement("its peak memory", "bytes, against the bar", memory, LARGEST, 1.0, True)
        ours, engine = beside_training()
        yield Measurement("a round of cnn, 50 devices", "CPU seconds, against the engine", ours, engine, OVERHEAD, True)
    finally:
        torch.set_num_threads(threads)


class Idle:
    """An engine that trains nothing: everybody sends back what it got."""

    def open(self, world: World) -> None:
        """Nothing is needed."""

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        up = Packet(jobs[0].down.tensors, {"samples": float(len(jobs))})
        size = up.nbytes
        scalars = {"samples": 1.0}
        devices = [job.device for job in jobs]
        yield Outcome(jobs[0].node, up, dict.fromkeys(devices, size), {}, dict.fromkeys(devices, scalars), folded=True)

    def facts(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        """Nothing is held."""


def bookkeeping() -> tuple[float, float]:
    """Wall seconds and peak bytes of a million jobs that train nothing, on a mixed fleet, ledger and store included."""
    simulation = _simulation(Writers(DEVICES), "logistic", Idle(), "mixed-edge", ROUNDS)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder), create=True)
        began = perf_counter()
        for ends in simulation.rounds():
            row = dict.fromkeys(("accuracy", "loss", "wall_seconds", "flops", "joules", "bytes_down", "bytes_up"), 0.0)
            counts = {"arrived": len(ends[0].arrived), "lost": 0, "refused": 0, "late": 0}
            facts = {"round": ends[0].round + 1, "simulated_seconds": simulation.now, **row, **counts}
            store.finish_round("bench", [facts], simulation.ledger.take(), None)
        seconds = perf_counter() - began
        store.close()
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def beside_training(rounds: int = 3, devices: int = 50) -> tuple[float, float]:
    """CPU seconds of a round, all in all and inside the engine."""
    writers = Writers(devices)
    population = InMemory({device: writers.train(device) for device in writers.devices}, writers)
    engine = Timed()
    simulation = _simulation(population, "cnn", engine, "mixed-edge", rounds + 1)
    running = simulation.rounds()
    next(running)  # traces and warms up
    engine.seconds, began = 0.0, process_time()
    for _ in running:
        simulation.ledger.take()
    return (process_time() - began) / rounds, engine.seconds / rounds


class Timed(Serial):
    """Measures its own CPU time."""

    seconds = 0.0

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        began = process_time()
        outcomes = list(super().run(jobs))
        self.seconds += process_time() - began
        yield from outcomes


def _simulation(
    population: Writers | InMemory, model: str, engine: Idle | Serial, devices: str, rounds: int
) -> Simulation:
    writers = population if isinstance(population, Writers) else population.inner
    task = Task(Model(builder(model, writers.shape, writers.classes)), 62, Train(rounds=rounds, batch=20))
    method = FedAvg()
    node = Node("server", method.server, task, writers.devices, rounds)
    world = World(task, method.client, {"server": method.server}, population)
    spread = fleet(devices, writers.devices, 0)
    clock = FleetClock(spread, task, method.client, writers, world.states)
    simulation = Simulation({"server": node}, {}, engine, world, clock)
    simulation.start()
    return simulation
