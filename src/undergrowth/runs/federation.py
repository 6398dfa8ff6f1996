"""From an experiment to everything that takes part in it: method, data, model, nodes, engine, clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from undergrowth.core import InputError, Method, Model, Node, Shard, Task, check_options, nearest
from undergrowth.data import Dataset, Pooled, Population
from undergrowth.devices import Failures, Fleet, availability, fleet
from undergrowth.engines import ENGINES, Engine, EngineSettings, States, World
from undergrowth.learning import selection, selector
from undergrowth.links import Links
from undergrowth.runs.config import Experiment
from undergrowth.runs.parts import (
    check_models,
    ladder_of,
    method_of,
    model_of,
    population_of,
    public_of,
    torch_device,
)
from undergrowth.simulation import FleetClock, Simulation
from undergrowth.topology import tree


@dataclass
class Federation:
    method: Method
    population: Population
    task: Task
    fleet: Fleet
    world: World
    simulation: Simulation
    clock: FleetClock
    notes: list[str]  # what the user should know, and what is no error

    @cached_property
    def test(self) -> Shard:
        """The central test set."""
        return self.population.central_test().to(self.world.torch_device)


def federate(
    experiment: Experiment,
    method: Method | None = None,
    data: Dataset | Population | None = None,
    model: Callable[[], nn.Module] | Model | None = None,
) -> Federation:
    """Builds what the experiment names; objects of the user's stand in for names. A Model has been checked before."""
    settings = experiment.settings()
    method = method or method_of(experiment.method.name, experiment.method.options)
    check_options(method, "method")
    method.check()
    engine, engines = experiment.run.engine, [*ENGINES, "auto"]
    if engine not in engines:
        raise InputError(f"run.engine '{engine}' is not known; {nearest(engine, engines)}")
    places = [torch_device(name) for name in engine_settings(experiment).torch_devices]
    # Worker processes have devices of their own; what the server does is done on the CPU.
    device = "cpu" if engine == "processes" else places[0]
    population = population_of(experiment, data)
    public = public_of(experiment, population)
    if method.pooled:
        population = Pooled(population)
    notes: list[str] = []
    asked = [name for name in population.devices if population.size(name) > 0]
    odd = next((name for name in population.devices if "/" in name), None)
    if odd is not None:
        raise InputError(f"data '{population.name}': the device name '{odd}' has a slash; rename it")
    if not asked:
        raise InputError(f"data '{population.name}': no device has a sample to train on")
    if not len(population.central_test()):
        raise InputError(f"data '{population.name}': the central test set is empty; it needs at least one sample")
    if len(asked) < len(population.devices):
        notes.append(f"{len(population.devices) - len(asked)} of {len(population.devices)} devices have no sample")

    functional, ladder = model_of(experiment, population, model), ladder_of(experiment, population, model)
    asks, picks = selection(experiment.train.selection, settings), selector(experiment.train.selector)
    for each in (functional, *ladder.values()):
        each.mixed = experiment.run.precision == "bf16"
    task = Task(functional, population.classes, settings, asks, public, picks, ladder).to(device)
    if not isinstance(model, Model) or ladder:
        check_models(task, population.train(asked[0]).x[:1].to(device))

    shape = tree("star" if method.pooled else experiment.topology, population.devices)
    with_samples = set(asked)
    kind = "uniform" if method.pooled else experiment.fleet.name
    devices = fleet(kind, population.devices, experiment.run.seed)
    nodes: dict[str, Node] = {}
    for name, children in shape.children.items():
        nodes[name] = Node(
            name=name,
            server=method.server_at(shape.depth[name]),
            task=task,
            children=tuple(child for child in children if child in shape.children or child in with_samples),
            cycles=settings.rounds if shape.depth[name] == 0 else 1,
            seed=experiment.run.seed,
            is_root=shape.depth[name] == 0,
            nodes=frozenset(child for child in children if child in shape.children),
        )
    links = Links(experiment.links.up, experiment.links.down, experiment.links.feedback)
    servers = {name: node.server for name, node in nodes.items()}
    world = World(task, method.client, servers, population, States(torch_device=device), links, device)
    clock = clock_of(experiment, devices, population, world, population.train(asked[0]).x.dtype)
    for node in nodes.values():
        node.knows = clock
    simulation = Simulation(nodes, shape.parents, engine_of(experiment, world), clock, links)
    return Federation(method, population, task, devices, world, simulation, clock, notes)


def engine_of(experiment: Experiment, world: World) -> Engine:
    """Open in that world. What `auto` stands for is found out on a federation that is there already: with `serial`."""
    name = "serial" if experiment.run.engine == "auto" else experiment.run.engine
    engine = ENGINES[name](engine_settings(experiment))
    engine.open(world)
    return engine


def engine_settings(experiment: Experiment) -> EngineSettings:
    section = experiment.run
    # Worker processes may be on several devices: cuda:0,cuda:1.
    devices = tuple(section.device.split(",")) if section.engine == "processes" else (section.device,)
    return EngineSettings(
        workers=section.workers,
        torch_devices=devices,
        placement=section.placement,
        stack=section.stack,
        chunk=section.chunk,
        address=section.address,
        tf32=section.precision != "float32",
    )


def clock_of(
    experiment: Experiment, devices: Fleet, population: Population, world: World, dtype: torch.dtype
) -> FleetClock:
    """The clock of the experiment's fleet: how fast its devices are, when they are there, what goes wrong."""
    section = experiment.fleet
    there = None
    if section.availability != "always":
        there = availability(section.availability, population.devices, experiment.run.seed)
    failures = Failures(section.dropout, section.failure) if section.dropout or section.failure else None
    return FleetClock(devices, world.task, world.client, population, world.states, dtype, there, failures, world.links)
