"""Evaluates the models of the nodes of a tree: on all test samples, on those of the devices below, on proxy data."""

from __future__ import annotations

from typing import Any

from undergrowth.core import Method, Model, Shard, Task, Weights
from undergrowth.runs.evaluation import evaluate
from undergrowth.runs.federation import Federation
from undergrowth.runs.run_models import own_test_samples, some_devices, with_model
from undergrowth.runs.topologies import place_of


def score_tree(federation: Federation) -> dict[str, Any]:
    """The main metric of the nodes' models and, by the number of links, of those on the way from a device to the root.

    Empty for a method whose nodes have no models of their own, and in a star unless its devices keep models. `nodes`
    has a row for every node with a model. `distances` has the mean over devices on their own test samples: of their own
    model, of the model one link above, and so on.
    """
    models, method = _models(federation), type(federation.method)
    keeps_all = method.node_model is not Method.node_model and method.personal is not Method.personal
    if len(models) < 2 and not (models and keeps_all):
        return {}
    topology, population, task = federation.topology, federation.present, federation.task
    found = own_test_samples(population, some_devices(population))
    shards = {name: shard.to(federation.world.torch_device) for name, shard in found.items()}
    parents = federation.servers
    rows = []
    for node, weights in models.items():
        below = [shard for device, shard in shards.items() if node in _way(device, parents)]
        rows.append({
            "node": node,
            "parent": parents.get(node),
            "depth": topology.depth[node],
            "devices": sum(child not in topology.children for child in topology.children[node]),
            "score": _score(task, weights, federation.test),
            "score_below": _score(task, weights, Shard.join(below)) if below else None,
            "score_proxy": _on_proxy_data(federation, node, weights),
        })  # fmt: skip
    return {
        "metric": task.kind.metric.name,
        "nodes": rows,
        "distances": _by_distance(federation, models, shards, parents),
    }


def _models(federation: Federation) -> dict[str, Weights]:
    """The model of every node that has one; none if the root's is not the run's."""
    found = federation.models.named().get("global")
    if found is None or with_model(federation.task, found).model is not federation.task.model:
        return {}
    models = {federation.driver.root.name: with_model(federation.task, found).weights}
    for name, node in federation.nodes.items():
        weights = None if node.is_root else federation.method.node_model(federation.task, node.state)
        if weights is not None:
            models[name] = weights
    return models


def _by_distance(
    federation: Federation, models: dict[str, Weights], shards: dict[str, Shard], parents: dict[str, str]
) -> list[dict[str, Any]]:
    """The mean metric, over the devices with test samples, of the models at each distance from them."""
    task, now = federation.task, federation.models
    found: dict[int, list[float]] = {}
    for device, shard in shards.items():
        personal = with_model(task, now.personal(device))
        used = [personal.weights, *(models.get(node) for node in _way(device, parents))]
        for distance, weights in enumerate(used):
            if weights is not None:
                model = personal.model if distance == 0 else task.model
                found.setdefault(distance, []).append(_score(task, weights, shard, model))
    return [
        {"distance": distance, "score": sum(values) / len(values), "devices": len(values)}
        for distance, values in sorted(found.items())
    ]


def _on_proxy_data(federation: Federation, node: str, weights: Weights) -> float | None:
    data = federation.nodes[node].task.public
    if data is None or not federation.method.has_proxy_data(place_of(federation.topology, node)):
        return None
    return _score(federation.task, weights, data)


def _score(task: Task, weights: Weights, shard: Shard, model: Model | None = None) -> float:
    """The main metric of the task."""
    return evaluate(task.kind, model or task.model, weights, shard)[task.kind.metric.name]


def _way(device: str, parents: dict[str, str]) -> list[str]:
    """The nodes from a device's parent up to the root."""
    way = [parents[device]]
    while way[-1] in parents:
        way.append(parents[way[-1]])
    return way
