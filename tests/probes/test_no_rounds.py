"""Probe (c): no rounds; the server steps after every K updates, which may be stale."""

from __future__ import annotations

from dataclasses import dataclass

from tests.probes.conftest import POPULATION, Run, accuracy
from undergrowth.core import Context, Method, Packet, Plan, Progress, Server, State, Task, View, WeightedMean
from undergrowth.learning import GradientClient, Trained


class SendsChange(GradientClient):
    def upload(self, trained: Trained) -> tuple[Packet, State]:
        change = {name: value - trained.down.tensors[name] for name, value in trained.tensors.items()}
        return Packet(change, trained.scalars), {"jobs": trained.own.get("jobs", 0) + 1}


def half_for_every_version(age: int) -> float:
    return 0.5**age


@dataclass(frozen=True)
class Buffered(Server):
    buffer: int
    concurrency: int
    asynchronous = True
    waits_for_all = False
    reducer = WeightedMean(None, half_for_every_version)

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        free = self.concurrency - len(view.out)
        start = (context.round * 3) % len(view.idle)
        asked = (view.idle[start:] + view.idle[:start])[:free]
        return Plan(dict.fromkeys(asked, Packet(state["model"])))

    def ready(self, progress: Progress) -> bool:
        return progress.arrived >= self.buffer

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        return {"model": {name: value + combined.tensors[name] for name, value in state["model"].items()}}


@dataclass(frozen=True)
class Buffer(Method):
    buffer: int
    concurrency: int
    client = SendsChange()

    @property
    def server(self) -> Buffered:
        return Buffered(self.buffer, self.concurrency)


def test_a_buffer_of_stale_updates_learns_and_nobody_waits(run: Run) -> None:
    simulation, world = run(Buffer(buffer=3, concurrency=5), rounds=40)
    model = simulation.root.state["model"]
    assert accuracy(world.task.model(model, POPULATION.central_test().x)) > 0.75
    jobs = {device: state["jobs"] for device, state in world.states.all().items()}
    assert sum(jobs.values()) >= 40 * 3
    assert simulation.now < 40 * 3.6  # the slowest takes 3.59 seconds: waiting for all would take forty times that
