"""`undergrowth bench loop`: the cost of the abstraction on one core.

The reference is the loop that a researcher writes by hand: for every device load the model, make an optimiser, train on
the batches, add the weights to a sum. Both sides train the same model on the same batches and compute the same average.
Their rounds alternate, so that other programs on the machine slow both.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from time import process_time

import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.bench import Measurement
from undergrowth.bench.workload import InMemoryPopulation, SyntheticPopulation
from undergrowth.core import Context, Model, Node, RunError, Task, Train, Weights
from undergrowth.devices import build_fleet
from undergrowth.engines import Engine, SerialEngine, World
from undergrowth.methods import FedAvg
from undergrowth.models import builder
from undergrowth.simulation import FleetClock, Simulation

DEVICES = 100
BATCH = 20
BARS = {"cnn": 0.95, "logistic": 0.7}
REPEATS = {"cnn": 3, "logistic": 15}
MAX_DIFFERENCE = 0.01  # of the model's length: sums are in another order, and single activations change sign


def measure() -> Iterator[Measurement]:
    with one_thread():
        for name, bar in BARS.items():
            ours, reference = compare(name, REPEATS[name])
            yield Measurement(f"{name}, {DEVICES} devices a round", "clients per CPU second", ours, reference, bar)


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def simulate_fedavg(
    population: SyntheticPopulation | InMemoryPopulation, model: str, engine: Engine, fleet: str, rounds: int
) -> Simulation:
    """FedAvg in a star, started."""
    task = Task(
        Model(builder(model, population.shape, population.classes)),
        population.classes,
        Train(rounds=rounds, batch=BATCH),
    )
    method = FedAvg()
    node = Node("server", method.server, task, population.devices, rounds)
    world = World(task, method.client, {"server": method.server}, population)
    devices = build_fleet(fleet, population.devices, 0)
    clock = FleetClock(devices, task, method.client, population, world.states)
    simulation = Simulation({"server": node}, {}, engine, world, clock)
    simulation.start()
    return simulation


def compare(name: str, repeats: int) -> tuple[float, float]:
    """Clients per CPU second of the engine and of the loop: medians over rounds that alternate."""
    population = InMemoryPopulation.of(SyntheticPopulation(DEVICES))
    simulation = simulate_fedavg(population, name, SerialEngine(), "uniform", repeats + 1)
    rounds, node, task = simulation.rounds(), simulation.root, simulation.world.task

    weights = task.model.initial(Context(0, "server", 0).key("model"))
    ours, reference = [], []
    for number in range(repeats + 1):
        began = process_time()
        next(rounds)
        middle = process_time()
        weights = by_hand(task, weights, population, number)
        ended = process_time()
        difference = distance(node.state["model"], weights)
        if difference > MAX_DIFFERENCE:
            raise RunError(
                f"after round {number + 1} the model differs from the loop's by {difference:.2g} of its length"
            )
        weights = dict(node.state["model"])  # rounding would grow from round to round
        if number:  # the first round traces and warms up
            ours.append(DEVICES / (middle - began))
            reference.append(DEVICES / (ended - middle))
    return statistics.median(ours), statistics.median(reference)


def by_hand(task: Task, weights: dict[str, Tensor], population: InMemoryPopulation, number: int) -> dict[str, Tensor]:
    """One round of FedAvg as one would write it without a framework."""
    module = task.model.build().train()
    total: dict[str, Tensor] = {}
    samples = 0
    for device in population.shards:
        shard = population.train(device)
        module.load_state_dict(weights)
        optimiser = torch.optim.SGD(module.parameters(), lr=task.train.lr)
        # The same order as the engine's, so that both sides do the same work.
        generator = Context(0, device, number, number).generator("order")
        order = torch.randperm(len(shard), generator=generator)
        for index in order.split(BATCH):
            optimiser.zero_grad()
            F.cross_entropy(module(shard.x[index]), shard.y[index]).backward()
            optimiser.step()
        for key, value in module.state_dict().items():
            total[key] = total[key] + len(shard) * value if key in total else len(shard) * value
        samples += len(shard)
    return {key: value / samples for key, value in total.items()}


def distance(ours: Weights, theirs: Weights) -> float:
    """The distance between two models, relative to the length of the first."""
    squares, length = (
        sum(float(value.square().sum()) for value in values)
        for values in ((ours[name] - theirs[name] for name in ours), ours.values())
    )
    return math.sqrt(squares / length)
