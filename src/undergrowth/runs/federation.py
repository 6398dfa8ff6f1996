"""Everything that takes part in a run: method, data, model, nodes, engine, clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor

from undergrowth.core import Context, Method, Node, Shard, Task
from undergrowth.data import PooledPopulation, Population
from undergrowth.devices import Fleet, LinkProfile
from undergrowth.engines import Engine, World
from undergrowth.engines.samples import shards_at
from undergrowth.exchange import Driver
from undergrowth.runs.device_groups import DeviceGroups
from undergrowth.runs.preview import FirstRound, preview_first_round
from undergrowth.runs.run_models import RunModels
from undergrowth.simulation import FleetClock, Simulation, TrainingCost
from undergrowth.topology import Topology


def with_loops_of(engine: Engine, task: Task) -> Task:
    """The task with the way in which the engine computes several training loops, such as those of a server."""
    return replace(task, run_loops=getattr(engine, "run_loops", None))


@dataclass
class Federation:
    """Everything that takes part in a run. The engine can be exchanged until the driver is started."""

    method: Method
    population: Population
    task: Task
    fleet: Fleet
    topology: Topology
    nodes: Mapping[str, Node]
    world: World
    clock: FleetClock
    engine: Engine
    server_links: Mapping[str, LinkProfile]  # node → the link to its parent
    server_training: Mapping[str, TrainingCost]  # node → what its server trains in a round, if that takes time
    notes: list[str]  # facts that the user should know and that are not errors
    groups: DeviceGroups  # those that the method asks for

    @cached_property
    def driver(self) -> Driver:
        return Simulation(
            self.nodes, self.topology.parents, self.engine, self.world, self.clock, self.server_links,
            self.server_training,
        )  # fmt: skip

    def note(self, *notes: str) -> None:
        """Adds notes, each once: a step that is done again after a resume has the same ones."""
        self.notes.extend(note for note in dict.fromkeys(notes) if note not in self.notes)

    def use(self, engine: Engine) -> None:
        """Puts another engine in place of the present one, which is closed if it was started."""
        self.driver.close()
        self.engine = engine
        del self.driver
        self.task = with_loops_of(engine, self.task)
        self.world.task = with_loops_of(engine, self.world.task)
        for node in self.nodes.values():
            node.task = with_loops_of(engine, node.task)

    @property
    def device_data(self) -> Population:
        """The data of the devices, also if the method pools it."""
        population = self.population
        return population.population if isinstance(population, PooledPopulation) else population

    def reseed(self, purpose: str) -> None:
        """Draws random numbers in the rounds that no other federation of the run draws. The initial model stays."""
        self.driver.root.initialise()
        for node in self.nodes.values():
            node.seed = Context(node.seed, self.driver.root.name, 0).key(purpose)

    def deadline_of(self, device: str) -> float | None:
        """The seconds that the server above `device` waits for it."""
        own = self.topology.of(self.servers.get(device, "")).deadline
        return self.task.train.deadline if own is None else own

    @property
    def models(self) -> RunModels:
        """The models as they are now."""
        return RunModels(self.method, self.task, self.driver.root.state, self.world.states.all())

    @cached_property
    def servers(self) -> dict[str, str]:
        """Device → the server above it."""
        return {child: node for node, children in self.topology.children.items() for child in children}

    @cached_property
    def test(self) -> Shard:
        """The central test set."""
        return self.population.central_test().to(self.world.torch_device)

    @property
    def changes(self) -> bool:
        """Whether the samples of the devices change from round to round."""
        return hasattr(self.population, "at")

    def population_at(self, round: int) -> Population:
        """The data as it is in a round of the root, counted from 0."""
        return cast(Population, shards_at(self.population, round))

    @property
    def present(self) -> Population:
        """The data as it was in the last round that ended; before the first one, in that one."""
        return self.population_at(max(0, self.driver.root.round - 1))

    @cached_property
    def test_groups(self) -> dict[str, Tensor]:
        """Group → positions of its samples in the central test set; empty if the groups of samples are not known."""
        known = self.groups.of_test
        if known is None:
            return {}
        return {str(name): torch.from_numpy(np.flatnonzero(known == name)) for name in np.unique(known)}

    @cached_property
    def devices_with_samples(self) -> tuple[str, ...]:
        """The devices that may be asked."""
        return tuple(device for device in self.population.devices if self.population.size(device))

    @cached_property
    def first_round(self) -> FirstRound:
        """What the servers would send to each device in a typical round."""
        return preview_first_round(self.nodes, self.driver.root)
