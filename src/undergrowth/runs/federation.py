"""From an experiment to everything that takes part in it: method, data, model, nodes, engine, clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, get_type_hints

import torch
from pydantic import ConfigDict, ValidationError, create_model
from torch import nn

from undergrowth.core import InputError, Method, Model, Node, Shard, Task, check_options, nearest
from undergrowth.data import Dataset, Population, load, partition
from undergrowth.devices import Failures, Fleet, availability, fleet
from undergrowth.engines import ENGINES, World
from undergrowth.learning import selection
from undergrowth.links import Links
from undergrowth.methods import METHODS
from undergrowth.models import builder
from undergrowth.runs.config import Experiment, sentence
from undergrowth.simulation import FleetClock, Simulation
from undergrowth.topology import tree

CLIENTS = 20  # devices, where neither the user nor the data says how many
POOL = "pool"  # the one device of a method that has all samples in one place


@dataclass
class Federation:
    method: Method
    population: Population
    task: Task
    fleet: Fleet
    world: World
    simulation: Simulation
    notes: list[str]  # what the user should know, and what is no error

    @cached_property
    def test(self) -> Shard:
        """The central test set."""
        return self.population.central_test().to(self.world.device)


def federate(
    experiment: Experiment,
    method: Method | None = None,
    data: Dataset | Population | None = None,
    model: Callable[[], nn.Module] | None = None,
) -> Federation:
    """Builds what the experiment names; objects of the user's stand in for names."""
    settings = experiment.settings()
    method = method or method_of(experiment.method.name, experiment.method.options)
    check_options(method, "method")
    method.check()
    if experiment.run.engine not in ENGINES:
        hint = nearest(experiment.run.engine, ENGINES)
        raise InputError(f"run.engine '{experiment.run.engine}' is not known; {hint}")
    device = torch_device(experiment.run.device)
    population = population_of(experiment, data)
    if method.pooled:
        population = Pooled(population)
    notes: list[str] = []
    asked = [name for name in population.devices if population.size(name) > 0]
    if not asked:
        raise InputError(f"data '{population.name}': no device has a sample to train on")
    if not len(population.central_test()):
        raise InputError(f"data '{population.name}': the central test set is empty; it needs at least one sample")
    if len(asked) < len(population.devices):
        notes.append(f"{len(population.devices) - len(asked)} of {len(population.devices)} devices have no sample")

    functional = model_of(experiment, population, model).to(device)
    task = Task(functional, population.classes, settings, selection(experiment.train.selection, settings))
    check_model(task, population, asked[0], device)

    shape = tree("star" if method.pooled else experiment.topology, population.devices)
    with_samples = set(asked)
    devices = fleet(experiment.fleet.name, population.devices, experiment.run.seed)
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
    world = World(task, method.client, servers, population, links=links, device=device)
    engine = ENGINES[experiment.run.engine]()
    engine.open(world)
    clock = clock_of(experiment, devices, population, world, population.train(asked[0]).x.dtype)
    for node in nodes.values():
        node.knows = clock
    simulation = Simulation(nodes, shape.parents, engine, clock, links)
    return Federation(method, population, task, devices, world, simulation, notes)


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


def method_of(name: str, options: dict[str, Any]) -> Method:
    """The method of that name with those options, each of the right type."""
    if name not in METHODS:
        raise InputError(f"method '{name}' is not known; {nearest(name, METHODS)}")
    chosen = METHODS[name]
    hints = get_type_hints(chosen)
    known: dict[str, Any] = {field.name: (hints[field.name], field.default) for field in fields(chosen)}  # type: ignore[arg-type]
    checked = create_model(f"{name} options", __config__=ConfigDict(extra="forbid"), **known)
    try:
        values = checked.model_validate(options)
    except ValidationError as error:
        if not known:
            raise InputError(f"method.{next(iter(options))} is not a known key; {name} has no options") from None
        raise InputError(sentence(error, checked, "method")) from None
    return chosen(**{field: getattr(values, field) for field in known})


def population_of(experiment: Experiment, data: Dataset | Population | None) -> Population:
    section = experiment.data
    if isinstance(data, Population):
        if section.clients is not None and section.clients != len(data.devices):
            raise InputError(f"clients {section.clients}: the data object has {len(data.devices)} devices")
        return data
    if data is None:
        data = load(section.name, section.path, **section.options)
    natural = section.partition.partition(":")[0] == "natural"
    clients = section.clients or (None if natural else CLIENTS)
    return partition(data, section.partition, clients, experiment.run.seed, section.holdout)


def model_of(experiment: Experiment, population: Population, model: Callable[[], nn.Module] | None) -> Model:
    if model is None:
        return Model(builder(experiment.model.name, population.shape, population.classes, **experiment.model.options))
    if isinstance(model, nn.Module):
        raise InputError("model: this is an nn.Module; give a callable that returns a fresh one, such as its class")
    try:
        with torch.random.fork_rng(devices=[]):
            built = model()
    except Exception as error:
        raise InputError(f"model: the callable failed ({error}); it is called without arguments") from error
    if not isinstance(built, nn.Module):
        raise InputError(f"model: the callable returned a {type(built).__name__}; it must return an nn.Module")
    return Model(model)


def check_model(task: Task, population: Population, device_name: str, device: str) -> None:
    """Refuses a model whose output does not fit the labels, before any round starts."""
    x = population.train(device_name).x[:1].to(device)
    weights = task.model.initial(0)
    try:
        with torch.no_grad():
            output = task.model(weights, x)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"model: it cannot take an input of shape {tuple(x.shape[1:])}: {reason}") from None
    if not isinstance(output, torch.Tensor):
        raise InputError(f"model: its output is a {type(output).__name__}; it must be a tensor with a row per sample")
    if output.dim() != 2 or output.shape[1] < task.classes:
        raise InputError(
            f"model: its output for one sample has shape {tuple(output.shape[1:])}; "
            f"the data needs ({task.classes},), one value for each class"
        )


def torch_device(name: str) -> str:
    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise InputError(f"run.device '{name}' is not a torch device; write cpu, cuda or cuda:0") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(f"run.device '{name}': torch finds no GPU on this machine; write cpu")
    return name


@dataclass(frozen=True)
class Pooled:
    """All samples of a population in one place, as one device."""

    population: Population

    @property
    def devices(self) -> tuple[str, ...]:
        return (POOL,)

    @property
    def classes(self) -> int:
        return self.population.classes

    @property
    def shape(self) -> tuple[int, ...]:
        return self.population.shape

    @property
    def name(self) -> str:
        return self.population.name

    def train(self, device: str) -> Shard:
        return _joined([self.population.train(name) for name in self.population.devices])

    def test(self, device: str) -> Shard:
        return _joined([self.population.test(name) for name in self.population.devices])

    def central_test(self) -> Shard:
        return self.population.central_test()

    def size(self, device: str) -> int:
        return sum(self.population.size(name) for name in self.population.devices)


def _joined(shards: list[Shard]) -> Shard:
    return Shard(torch.cat([shard.x for shard in shards]), torch.cat([shard.y for shard in shards]))
