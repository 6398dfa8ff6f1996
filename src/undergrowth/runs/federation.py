"""From an experiment to everything that takes part in it: method, data, model, nodes, engine, clock.

Building opens no process, file or socket: `Federation.driver.start()` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from undergrowth.core import (
    Client,
    Context,
    InputError,
    LoopClient,
    Method,
    Model,
    Node,
    Server,
    Shard,
    Task,
    Updates,
    check_options,
    check_parts,
    check_task,
)
from undergrowth.data import Dataset, PooledPopulation, Population, StreamedPopulation, pool
from undergrowth.devices import Failures, Fleet, LinkProfile, build_availability, build_fleet
from undergrowth.engines import Engine, States, World
from undergrowth.engines.samples import shards_at
from undergrowth.exchange import Driver, Links
from undergrowth.learning import build_augmentation, build_sampler, build_selector
from undergrowth.learning.ladder import assign_counts
from undergrowth.learning.own_training import BETWEEN_ROUNDS, OwnTrainingClient, OwnTrainingServer
from undergrowth.methods import METHODS
from undergrowth.runs.builders import (
    build_ladder,
    build_model,
    build_population,
    build_public,
    check_torch_device,
    task_of,
)
from undergrowth.runs.config import Experiment, FleetSection
from undergrowth.runs.device_groups import DeviceGroups, device_groups
from undergrowth.runs.engine_builder import build_engine, engine_settings
from undergrowth.runs.method_builder import build_method
from undergrowth.runs.model_preparation import with_model_settings
from undergrowth.runs.own_model import check_models
from undergrowth.runs.own_task import TaskFunctions, build_kind, check_functions
from undergrowth.runs.preview import FirstRound, preview_first_round
from undergrowth.runs.server_links import wire_servers
from undergrowth.runs.server_training import FREE, price_servers
from undergrowth.runs.topologies import (
    check_proxy_data,
    check_settings,
    named_proxy_data,
    node_task,
    place_of,
    population_topology,
    rounds_of,
)
from undergrowth.runs.unused_settings import unused_settings
from undergrowth.simulation import FleetClock, Simulation, TrainingCost
from undergrowth.topology import Topology


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

    def use(self, engine: Engine) -> None:
        """Puts another engine in place of the present one, which is closed if it was started."""
        self.driver.close()
        self.engine = engine
        del self.driver

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
    def first_round(self) -> FirstRound:
        """What the server would send to each device in a typical round."""
        devices = tuple(device for device in self.population.devices if self.population.size(device))
        return preview_first_round(self.driver.root, self.method.server, devices)


def federate(
    experiment: Experiment,
    method: Method | None = None,
    data: Dataset | Population | None = None,
    model: Callable[[], nn.Module] | Model | None = None,
    functions: TaskFunctions | None = None,
) -> Federation:
    """Builds what the experiment names; objects stand in for names. A `Model` was checked before."""
    method = method or build_method(experiment.method.name, experiment.method.options)
    check_options(method, "method")
    method.check()
    check_parts(method)
    experiment = with_model_settings(experiment, method)
    if method.model_settings and isinstance(model, Model):
        model = model.build  # checked without these settings
    engine = build_engine(experiment)
    population, public, notes = _population(experiment, method, data)
    method.check_devices(population.devices)
    with_samples = [name for name in population.devices if population.size(name) > 0]
    sample = population.train(with_samples[0]).take(torch.arange(1))
    task = replace(
        _task(experiment, population, public, model),
        kind=build_kind(experiment, task_of(population), functions),
        changing=hasattr(population, "at"),
    )
    check_task(method, _name_of(method), task)
    experiment.stop.check(task.kind)
    if not isinstance(model, Model) or task.ladder:
        task = check_models(task, sample.to(task.model.torch_device))
    check_functions(task, sample)
    notes.extend(unused_settings(experiment, method, task))
    topology = population_topology("star" if method.pooled else experiment.topology, population)
    check_settings(topology, method, task.public)
    topology, server_links = wire_servers(topology, FleetSection() if method.pooled else experiment.fleet)
    fleet_name = "uniform" if method.pooled else experiment.fleet.name
    fleet = build_fleet(fleet_name, population.devices, experiment.run.seed)
    if experiment.model.counts and not method.pooled:
        speeds = {name: fleet.profile(name).achieved_flops for name in population.devices}
        assigned = assign_counts(task.ladder, experiment.model.counts, speeds, experiment.run.seed)
        task = replace(task, assigned=assigned)
    groups = device_groups(population, method.group_field)
    task = replace(task, groups=groups.of_device, run_loops=getattr(engine, "run_loops", None))
    sizes = {name: population.size(name) for name in with_samples}
    proxy_data = named_proxy_data(topology, experiment, population)
    nodes = _nodes(experiment, method, task, topology, sizes, proxy_data)
    check_proxy_data(topology, method, _name_of(method), {name: node.task for name, node in nodes.items()})
    server_device = FREE if method.pooled else experiment.fleet.server_device
    server_training = price_servers(server_device, nodes, sample.x, notes)
    measured = frozenset(task.model.buffers).union(*(model.buffers for model in task.ladder.values()))
    given = experiment.links
    links = Links(given.up, given.down, given.feedback, measured, method.one_model_part)
    servers = {name: node.server for name, node in nodes.items()}
    client, own_servers = _own_training(method, population)
    torch_device = task.model.torch_device
    states = States(torch_device=torch_device)
    world = World(task, client, servers | own_servers, population, states, links, torch_device)
    clock = build_clock(experiment, fleet, population, world, sample.x.dtype)
    root = next(node for node in nodes.values() if node.is_root)
    if task.changing:
        clock.root_round = lambda: root.round
    for node in nodes.values():
        node.knowledge = clock
    notes.extend(method.notes(task))
    if not topology.parents and not method.pooled and experiment.fleet.server_link != "free":
        notes.append("fleet.server_link has no effect: a star has no link between servers")
    notes.extend(_missing_classes(population) if method.needs_all_classes else ())
    return Federation(
        method, population, task, fleet, topology, nodes, world, clock, engine, server_links, server_training, notes,
        groups,
    )  # fmt: skip


def _name_of(method: Method) -> str:
    """The name that users type, or that of the class."""
    return next((name for name, kind in METHODS.items() if kind is type(method)), type(method).__name__)


def _population(
    experiment: Experiment, method: Method, data: Dataset | Population | None
) -> tuple[Population, Shard | None, list[str]]:
    """The devices' data, the server's data, and notes about them."""
    population = build_population(experiment, data)
    public = build_public(experiment, population)
    notes = list(getattr(getattr(population, "dataset", None), "notes", ()))
    if method.pooled:
        population = pool(population)
    name, devices = population.name, population.devices
    with_slash = next((device for device in devices if "/" in device), None)
    if with_slash is not None:
        raise InputError(f"data '{name}': the device name '{with_slash}' has a slash; rename it")
    empty = sum(population.size(device) == 0 for device in devices)
    if empty == len(devices):
        raise InputError(f"data '{name}': no device has a sample to train on")
    if not len(population.central_test()):
        raise InputError(f"data '{name}': the central test set is empty; it needs at least one sample")
    return population, public, notes + ([f"{empty} of {len(devices)} devices have no sample"] if empty else [])


def _own_training(method: Method, population: Population) -> tuple[Client, dict[str, Server]]:
    """The client of the devices, and what checks the models that they train between rounds, if they do."""
    data = population.population if isinstance(population, PooledPopulation) else population
    epochs = data.stream.local_epochs if isinstance(data, StreamedPopulation) else 0
    if not epochs:
        return method.client, {}
    if method.pooled or not method.keeps_model or not isinstance(method.client, LoopClient | Updates):
        known = [name for name, kind in METHODS.items() if kind.keeps_model and not kind.pooled]
        raise InputError(
            f"stream.local_epochs {epochs}: the devices of method {_name_of(method)} keep no model to train between "
            f"rounds; choose one of {', '.join(known)}"
        )
    return OwnTrainingClient(method.client, epochs), {BETWEEN_ROUNDS: OwnTrainingServer()}


def _missing_classes(population: Population) -> list[str]:
    """A note about the classes of which no device has a training sample; or no note."""
    if hasattr(population, "counts"):
        held = {number for number, count in enumerate(population.counts().sum(0)) if count}
    else:
        held = {label for device in population.devices for label in population.train(device).y.unique().tolist()}
    missing = [str(number) for number in range(population.classes) if number not in held]
    if not missing:
        return []
    listed, them = (f"class {missing[0]}", "it") if len(missing) == 1 else (f"classes {', '.join(missing)}", "them")
    return [f"no device has a training sample of {listed}, so the model cannot learn {them}"]


def _task(
    experiment: Experiment, population: Population, public: Shard | None, model: Callable[[], nn.Module] | Model | None
) -> Task:
    train = experiment.train_settings()
    built, ladder = build_model(experiment, population, model), build_ladder(experiment, population, model)
    sampler, selector = build_sampler(experiment.train.sampler, train), build_selector(experiment.train.selector)
    torch_devices = [check_torch_device(name) for name in engine_settings(experiment).torch_devices]
    # Worker processes have torch devices of their own, and the server then computes on the CPU.
    torch_device = "cpu" if experiment.run.engine == "processes" else torch_devices[0]
    augmentation = build_augmentation(experiment.data.augment, population.shape, getattr(population, "black", None))
    task = Task(built, population.classes, train, sampler, public, selector, ladder, augmentation).to(torch_device)
    return task.with_models(lambda each: each.with_precision(experiment.run.precision == "bf16"))


def _nodes(
    experiment: Experiment,
    method: Method,
    task: Task,
    topology: Topology,
    samples: Mapping[str, int],
    proxy_data: Mapping[str, Shard],
) -> dict[str, Node]:
    """The nodes of the topology.

    `samples`: the number of samples of each device that has any. `proxy_data`: of the nodes that name a data set.
    """
    nodes = {}
    for name, children in topology.children.items():
        place = place_of(topology, name)
        is_root = place.depth == 0
        nodes[name] = Node(
            name=name,
            server=method.server_for(place),
            task=node_task(topology, name, task, method, experiment.run.seed, proxy_data),
            children=tuple(child for child in children if child in topology.children or child in samples),
            cycles=experiment.max_rounds if is_root else rounds_of(topology, name, method),
            seed=experiment.run.seed,
            is_root=is_root,
            devices=len(samples),
            samples=sum(samples.values()),
            nodes=frozenset(child for child in children if child in topology.children),
        )
    return nodes


def build_clock(
    experiment: Experiment, fleet: Fleet, population: Population, world: World, dtype: torch.dtype
) -> FleetClock:
    """The clock of the experiment's fleet: speed, availability and failures of its devices."""
    section = experiment.fleet
    availability = build_availability(section.availability, population.devices, experiment.run.seed)
    failures = Failures(section.dropout, section.failure) if section.dropout or section.failure else None
    return FleetClock(
        fleet, world.task, world.client, population, world.states, dtype, availability, failures, world.links
    )
