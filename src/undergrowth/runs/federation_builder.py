"""From an experiment to everything that takes part in it.

Building opens no process, file or socket: `Federation.driver.start()` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import nn

from undergrowth.core import (
    Client,
    InputError,
    LoopClient,
    Method,
    Model,
    Node,
    Server,
    Shard,
    Task,
    TaskKind,
    Updates,
    check_options,
    check_parts,
    check_task,
)
from undergrowth.data import Dataset, PooledPopulation, Population, StreamedPopulation, pool
from undergrowth.devices import Failures, Fleet, build_availability, build_fleet
from undergrowth.engines import States, World
from undergrowth.exchange import Links
from undergrowth.learning import build_augmentation, build_sampler, build_selector
from undergrowth.learning.ladder import assign_counts
from undergrowth.learning.own_training import BETWEEN_ROUNDS, OwnTrainingClient, OwnTrainingServer
from undergrowth.methods import METHODS
from undergrowth.runs.config import Experiment, FleetSection
from undergrowth.runs.data_builder import build_population, build_public, task_of
from undergrowth.runs.device_groups import device_groups
from undergrowth.runs.engine_builder import build_engine, check_torch_device, engine_settings
from undergrowth.runs.federation import Federation, with_loops_of
from undergrowth.runs.method_builder import build_method
from undergrowth.runs.model_builder import build_ladder, build_model, with_model_settings
from undergrowth.runs.own_model import check_models
from undergrowth.runs.own_task import TaskFunctions, build_kind, check_functions
from undergrowth.runs.server_links import wire_servers
from undergrowth.runs.server_training import price_servers
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
from undergrowth.simulation import FleetClock
from undergrowth.topology import Topology


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
    samples = {name: size for name in population.devices if (size := population.size(name)) > 0}
    sample = population.train(next(iter(samples))).take(torch.arange(1))
    kind = build_kind(experiment, task_of(population), functions)
    experiment.stop.check(kind)
    task = _checked_task(_task(experiment, population, public, model, kind), method, sample, isinstance(model, Model))
    notes.extend(unused_settings(experiment, method, task))
    if method.pooled:
        experiment = _with_one_device(experiment)
    topology = population_topology(experiment.topology, population)
    check_settings(topology, method, task.public)
    topology, server_links = wire_servers(topology, experiment.fleet)
    fleet = build_fleet(experiment.fleet.name, population.devices, experiment.run.seed)
    groups = device_groups(population, method.group_field)
    task = replace(task, assigned=_assigned(experiment, task, fleet), groups=groups.of_device)
    task = with_loops_of(engine, task)
    nodes = _nodes(experiment, method, task, topology, samples, named_proxy_data(topology, experiment, population))
    check_proxy_data(topology, method, _name_of(method), {name: node.task for name, node in nodes.items()})
    server_training = price_servers(experiment.fleet.server_device, nodes, sample.x, notes)
    world = _world(experiment, method, task, population, nodes)
    clock = _clock(experiment, fleet, population, world, nodes, sample.x.dtype)
    for node in nodes.values():
        node.knowledge = clock
    notes.extend(method.notes(task))
    if not topology.parents and experiment.fleet.server_link != "free":
        notes.append("fleet.server_link has no effect: a star has no link between servers")
    notes.extend(_missing_classes(population) if method.needs_all_classes else ())
    return Federation(
        method, population, task, fleet, topology, nodes, world, clock, engine, server_links=server_links,
        server_training=server_training, notes=notes, groups=groups,
    )  # fmt: skip


def _with_one_device(experiment: Experiment) -> Experiment:
    """The experiment of a pooled run: a star without the settings of several devices and servers."""
    several = {"name", "server_link", "server_device", "node_deadlines"}
    fleet = FleetSection(**experiment.fleet.model_dump(exclude=several))
    model = experiment.model.model_copy(update={"ladder": ()})
    return experiment.model_copy(update={"topology": "star", "fleet": fleet, "model": model})


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
    experiment: Experiment,
    population: Population,
    public: Shard | None,
    model: Callable[[], nn.Module] | Model | None,
    kind: TaskKind,
) -> Task:
    train = experiment.train_settings()
    built, ladder = build_model(experiment, population, model), build_ladder(experiment, population, model)
    sampler, selector = build_sampler(experiment.train.sampler, train), build_selector(experiment.train.selector)
    torch_devices = [check_torch_device(name) for name in engine_settings(experiment).torch_devices]
    # Worker processes have torch devices of their own, and the server then computes on the CPU.
    torch_device = "cpu" if experiment.run.engine == "processes" else torch_devices[0]
    augmentation = build_augmentation(experiment.data.augment, population.shape, getattr(population, "black", None))
    task = Task(
        built, population.classes, train, sampler, public, selector, ladder, augmentation, kind=kind,
        changing=hasattr(population, "at"),
    ).to(torch_device)  # fmt: skip
    return task.with_models(lambda each: each.with_precision(experiment.run.precision == "bf16"))


def _checked_task(task: Task, method: Method, sample: Shard, known: bool) -> Task:
    """The task, tried on one sample, with what that says about its models. `known`: the run's model was tried before.

    Raises `InputError` if the method or the models do not fit the data.
    """
    check_task(method, _name_of(method), task)
    if not known or task.ladder:
        task = check_models(task, sample.to(task.model.torch_device))
    check_functions(task, sample)
    return task


def _assigned(experiment: Experiment, task: Task, fleet: Fleet) -> dict[str, str]:
    """Device → its model of the ladder, if the experiment says how many devices get each."""
    if not experiment.model.counts:
        return {}
    speeds = {name: fleet.profile(name).achieved_flops for name in fleet.devices}
    return assign_counts(task.ladder, experiment.model.counts, speeds, experiment.run.seed)


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


def _world(
    experiment: Experiment, method: Method, task: Task, population: Population, nodes: Mapping[str, Node]
) -> World:
    """What an engine gets: the rules of devices and servers, and the links between them."""
    measured = frozenset(task.model.buffers).union(*(model.buffers for model in task.ladder.values()))
    given, torch_device = experiment.links, task.model.torch_device
    links = Links(given.up, given.down, given.feedback, measured, method.one_model_part)
    servers = {name: node.server for name, node in nodes.items()}
    client, own_servers = _own_training(method, population)
    return World(
        task, client, servers | own_servers, population, States(torch_device=torch_device), links, torch_device
    )


def _clock(
    experiment: Experiment,
    fleet: Fleet,
    population: Population,
    world: World,
    nodes: Mapping[str, Node],
    dtype: torch.dtype,
) -> FleetClock:
    """The clock of the experiment's fleet: speed, availability and failures of its devices."""
    section = experiment.fleet
    availability = build_availability(section.availability, fleet.devices, experiment.run.seed)
    failures = Failures(section.dropout, section.failure) if section.dropout or section.failure else None
    clock = FleetClock(
        fleet, world.task, world.client, population, world.states, dtype, availability, failures, world.links
    )
    if world.task.changing:
        root = next(node for node in nodes.values() if node.is_root)
        clock.root_round = lambda: root.round
    return clock
