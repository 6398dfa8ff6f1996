"""The clock of a run: how long each device of the fleet takes, from what its work really is."""

from __future__ import annotations

from undergrowth.core import Client, Packet, Task
from undergrowth.data import Population
from undergrowth.devices import Fleet, Tracer, price
from undergrowth.engines import States
from undergrowth.simulation import Timing


class FleetClock:
    """Traces a job, prices it on the device's profile."""

    def __init__(self, fleet: Fleet, task: Task, client: Client, population: Population, states: States) -> None:
        self.fleet = fleet
        self.population = population
        self.states = states
        example = population.train(next(name for name in population.devices if population.size(name))).x
        self.tracer = Tracer(task, client, tuple(example.shape[1:]), example.dtype)

    def timing(self, device: str, down: Packet) -> Timing:
        work = self.tracer.work(down, self.population.size(device), self.states.get(device))
        cost = price(self.fleet.profile(device), work, down.nbytes, work.bytes_up)
        return Timing(cost.seconds_down, cost.seconds_compute, cost.seconds_up, work.flops, work.memory, cost.joules)
