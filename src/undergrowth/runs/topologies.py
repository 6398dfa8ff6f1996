"""From an experiment to its topology, and from that to the place, the training settings and the data of each node."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os.path import expanduser
from pathlib import Path
from typing import Any

import torch

from undergrowth.core import Context, InputError, Method, NodePlace, Shard, Task
from undergrowth.data import Population, device_names
from undergrowth.learning.distillation import public_data
from undergrowth.runs.config import Experiment, parse_experiment
from undergrowth.runs.data_builder import DEFAULT_CLIENTS, build_population, build_public
from undergrowth.topology import ROOT, Topology, build_topology, devices_named, parse_widths, read_content
from undergrowth.topology.build import MAX_DEVICES

_OF_METHODS = ("rounds", "asynchronous", "proxy")  # the others are settings of the run for one node


def population_topology(text: str | Mapping[str, Any], population: Population) -> Topology:
    """The topology of a setting for the devices of a population."""

    def groups(field: str) -> Sequence[str]:
        group = getattr(population, "groups_by", None)
        if group is None:
            raise InputError(f"topology: the data object has no `groups_by`, which returns '{field}' of each device")
        found: Sequence[str] = group(field)
        return found

    return build_topology(text, population.devices, groups)


def preview_topology(text: str, data: Mapping[str, Any], seed: int = 0) -> Topology:
    """The topology without a run: for the devices of the data set in `data`, or for as many as the setting has."""
    experiment = parse_experiment({"data": dict(data), "run": {"seed": seed}})
    if "name" in data:
        return population_topology(text, build_population(experiment, None))
    path = Path(expanduser(text))
    known = devices_named(read_content(path)) if path.is_file() else math.prod(parse_widths(text) or [DEFAULT_CLIENTS])
    count = experiment.data.clients or known or DEFAULT_CLIENTS
    if count > MAX_DEVICES:
        raise InputError(f"data.clients {count} is too many for a topology; write at most {MAX_DEVICES}")
    return build_topology(text, device_names(count))


def check_settings(topology: Topology, method: Method, public: Shard | None) -> None:
    """Raise an InputError if a file sets something at a node that the run or the method has no use for."""
    for node, settings in topology.settings.items():
        for name in _OF_METHODS:
            if name in settings.given and name not in method.node_settings:
                raise InputError(
                    f"topology: node '{node}' has {name}, which {type(method).__name__} does not use at single nodes; "
                    "leave it out, or choose another method, such as bhfl"
                )
    fractions = {node: each.proxy for node, each in topology.settings.items() if isinstance(each.proxy, int | float)}
    if fractions and public is None:
        raise InputError(
            f"topology: node '{next(iter(fractions))}' has proxy data; add public: 0.1, which it is part of"
        )
    if sum(fractions.values()) > 1 + 1e-9:
        raise InputError(f"topology: the nodes have {sum(fractions.values()):g} of the public data; at most 1 in all")


def named_proxy_data(topology: Topology, experiment: Experiment, population: Population) -> dict[str, Shard]:
    """The proxy data of the nodes that name a data set. Its samples are drawn for each node by itself."""
    found = {}
    for node, settings in topology.settings.items():
        if not isinstance(settings.proxy, Mapping):
            continue
        seed = Context(experiment.run.seed, node, 0).key("proxy")
        try:
            public = parse_experiment({"public": {**settings.proxy, "labelled": True}}).public
            shard = build_public(experiment.with_run(seed=seed).model_copy(update={"public": public}), population)
        except InputError as error:
            raise InputError(f"topology: proxy of node '{node}': {error}") from None
        assert shard is not None  # the section has a name
        found[node] = shard
    return found


def check_proxy_data(topology: Topology, method: Method, name: str, tasks: Mapping[str, Task]) -> None:
    """Raise an InputError if a node uses proxy data and has none, or none with labels."""
    for node, task in tasks.items():
        if method.has_proxy_data(place_of(topology, node)):
            public_data(task, name, labelled=True)


def place_of(topology: Topology, node: str) -> NodePlace:
    """Where a node is, and what is special about it."""
    settings = topology.of(node)
    any_proxy = any(each.proxy is not None for each in topology.settings.values())
    proxy = settings.proxy is not None if any_proxy else None
    return NodePlace(topology.depth[node], settings.rounds, settings.asynchronous, proxy)


def rounds_of(topology: Topology, node: str, method: Method) -> int:
    """The rounds that a node below the root does for one ask of its parent."""
    return topology.of(node).rounds or method.rounds_at(topology.depth[node])


def node_task(topology: Topology, node: str, task: Task, method: Method, seed: int, named: Mapping[str, Shard]) -> Task:
    """The task with the training settings and the proxy data of a node. Nodes have different public samples.

    `named` has the proxy data of the nodes that name a data set. A node waits as long as the rounds of the nodes below
    it may last, unless it has a deadline of its own.
    """
    settings = topology.of(node)
    training = settings.given.keys() - {*_OF_METHODS, "link"}
    changed: dict[str, Any] = {key: settings.given[key] for key in training}
    if "deadline" not in changed and task.train.deadline is not None:
        changed["deadline"] = task.train.deadline * rounds_below(topology, node, method)
    if changed:
        task = replace(task, train=replace(task.train, **changed))
    if node in named:
        return replace(task, public=named[node].to(task.model.torch_device))
    if not isinstance(settings.proxy, int | float) or task.public is None:
        return task
    total, before = len(task.public), 0.0
    for other, each in topology.settings.items():
        if other == node:
            break
        before += each.proxy if isinstance(each.proxy, int | float) else 0.0
    generator = Context(seed, ROOT, 0).generator("proxy")
    rows = torch.randperm(total, generator=generator)[round(before * total) : round((before + settings.proxy) * total)]
    if not len(rows):
        raise InputError(f"topology: node '{node}' has proxy {settings.proxy:g}, which is no sample of {total}")
    return replace(task, public=task.public.take(rows.to(task.public.x.device)))


def rounds_below(topology: Topology, node: str, method: Method) -> int:
    """The most rounds of devices, one after the other, in one round of a node."""
    nodes = [child for child in topology.children[node] if child in topology.children]
    return max(
        (rounds_of(topology, child, method) * rounds_below(topology, child, method) for child in nodes), default=1
    )
