"""`undergrowth bench engines`: the engines on all cores against the push loop that one would write by hand.

The reference splits the cohort over forked processes, largest device first to whoever has least to do, trains every
device with a plain PyTorch loop, adds up in the worker and sends one sum back. The figure that a noisy machine cannot
spoil is CPU time a client; clients per second are those of a quiet machine only.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import get_context
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F

from undergrowth.bench import Measurement
from undergrowth.bench.workload import InMemory, Writers
from undergrowth.core import Context, Model, Packet, Task, Train, Weights
from undergrowth.engines import Job, Processes, Settings, World
from undergrowth.engines.processes.engine import cores
from undergrowth.methods import FedAvg
from undergrowth.models import builder

BATCH = 20
WORKLOADS = {"logistic": (500, 5, True), "cnn": (100, 1, False)}  # model → devices a round, rounds, stacked
BARS = {"logistic": 1 / 3, "cnn": 0.85}  # of the push loop's CPU time


def measure() -> Iterator[Measurement]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, (devices, rounds, stack) in WORKLOADS.items():
            ours, reference = compare(name, devices, rounds, stack)
            what = f"{name}, {devices} devices a round, {cores()} processes{', stacked' if stack else ''}"
            yield Measurement(what, "CPU ms a client", ours[0], reference[0], BARS[name], lower_is_better=True)
            yield Measurement(what, "clients a second", ours[1], reference[1], 1 / BARS[name])
    finally:
        torch.set_num_threads(threads)


def compare(name: str, devices: int, rounds: int, stack: bool) -> tuple[tuple[float, float], tuple[float, float]]:
    """CPU ms a client and clients a second, of the engine and of the loop; rounds alternate."""
    writers = Writers(devices)
    population = InMemory({device: writers.train(device) for device in writers.devices}, writers)
    task = Task(Model(builder(name, writers.shape, writers.classes)), 62, Train(batch=BATCH))
    method = FedAvg()
    engine = Processes(Settings(stack=stack))
    engine.open(World(task, method.client, {"server": method.server}, population))
    loop = PushLoop(task, population)
    weights = task.model.initial(0)
    down = Packet(weights)
    found: dict[str, list[tuple[float, float]]] = {"ours": [], "reference": []}
    try:
        for number in range(rounds + 1):
            jobs = [Job("server", device, down, Context(0, device, number), True) for device in writers.devices]
            began, used = perf_counter(), _cpu(engine.pids.values())
            list(engine.run(jobs))
            seconds = perf_counter() - began
            spent = _cpu(engine.pids.values()) - used
            by_hand = loop.round(weights, number)
            if number:  # the first round starts the workers
                found["ours"].append((1e3 * spent / devices, devices / seconds))
                found["reference"].append(by_hand)
    finally:
        engine.close()
        loop.close()
    ours, reference = (
        (statistics.median(cpu for cpu, _ in side), statistics.median(speed for _, speed in side))
        for side in found.values()
    )
    return ours, reference


class PushLoop:
    """The loop by hand: long-lived forked processes, one message each a round."""

    def __init__(self, task: Task, population: InMemory) -> None:
        self.devices = len(population.shards)
        self.shares: list[list[str]] = [[] for _ in range(cores())]
        loads = [0] * len(self.shares)
        for device in sorted(population.shards, key=population.size, reverse=True):
            least = loads.index(min(loads))
            self.shares[least].append(device)
            loads[least] += population.size(device)
        context = get_context("fork")
        self.lines, self.workers = [], []
        for share in self.shares:
            line, theirs = context.Pipe()
            worker = context.Process(target=_worker, args=(task, population, share, theirs), daemon=True)
            worker.start()
            self.lines.append(line)
            self.workers.append(worker)

    def round(self, weights: Weights, number: int) -> tuple[float, float]:
        """CPU ms a client and clients a second."""
        began, used = perf_counter(), _cpu(worker.pid for worker in self.workers)
        for line in self.lines:
            line.send(({name: value.numpy() for name, value in weights.items()}, number))
        total: dict[str, Any] = {}
        for line in self.lines:
            for name, value in line.recv().items():
                total[name] = total[name] + value if name in total else value
        seconds = perf_counter() - began
        spent = _cpu(worker.pid for worker in self.workers) - used
        return 1e3 * spent / self.devices, self.devices / seconds

    def close(self) -> None:
        for worker in self.workers:
            worker.terminate()
            worker.join()


def _worker(task: Task, population: InMemory, share: Sequence[str], line: Any) -> None:
    torch.set_num_threads(1)
    module = task.model.build().train()
    while True:
        arrays, number = line.recv()
        weights = {name: torch.from_numpy(value) for name, value in arrays.items()}
        total: dict[str, torch.Tensor] = {}
        for device in share:
            shard = population.train(device)
            module.load_state_dict(weights)
            optimiser = torch.optim.SGD(module.parameters(), lr=task.train.lr)
            order = torch.randperm(len(shard), generator=Context(0, device, number).generator("order"))
            for index in order.split(BATCH):
                optimiser.zero_grad()
                F.cross_entropy(module(shard.x[index]), shard.y[index]).backward()
                optimiser.step()
            for key, value in module.state_dict().items():
                total[key] = total[key] + len(shard) * value if key in total else len(shard) * value
        line.send({name: value.numpy() for name, value in total.items()})


def _cpu(pids: Iterable[int | None]) -> float:
    """CPU seconds of this process and of others, from the system's own books."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = sum(os.times()[:2])
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / ticks
    return total
