"""ClusterServer: a server that holds one model per cluster of devices, and the model of their common parent.

Clusters are virtual nodes. The parent's model is the mean of the clusters' models, weighted by the samples behind each.
A device that belongs to no cluster yet gets the parent's model. Packets have a model under the name of its cluster, in
both directions, or under "parent". The packet for an edge server has all models, and the cluster of every device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from undergrowth.core import (
    Collect,
    Context,
    Named,
    Packet,
    Plan,
    Server,
    State,
    Task,
    View,
    WeightedMean,
    Weights,
    option,
)
from undergrowth.core.names import MODEL, SAMPLES
from undergrowth.core.reducers import Reducer, add_upload
from undergrowth.learning.clustering import k_means, nearest_centres
from undergrowth.learning.gradient_client import GradientClient, Trained
from undergrowth.learning.planning import ask_each
from undergrowth.learning.servers import has_no_samples, mean_of_models, model_mismatch

PARENT, CLUSTERS, MEMBERS = "parent", "clusters", "members"  # of a packet, and of the server's state
WEIGHTS = "weights"  # of a cluster
MAX_DIRECTION = 4096  # values that a direction has at most
RESTARTS = 10  # of K-means


@dataclass(frozen=True)
class ClusterOptions:
    """What all methods have whose clusters have a common parent: an option, and the models to evaluate."""

    one_model_part: ClassVar[bool] = True  # under the name of the cluster

    parent_weight: float = option(0.0, "how far clusters move towards their parent's model", at_least=0, at_most=1)

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights]:
        """The parent's model as "global", and that of every cluster."""
        clusters = {f"cluster-{name}": kept[WEIGHTS] for name, kept in state[CLUSTERS].items()}
        return {"global": state[MODEL], **clusters}


@dataclass(frozen=True)
class OneShotOptions(ClusterOptions):
    """The options of methods with a fixed number of clusters."""

    k: int = option(2, "number of clusters", at_least=1)


@dataclass(frozen=True)
class ClusterClient(GradientClient):
    """Trains the only model of the packet and sends it under the same name."""

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        (received,) = down.parts().values()
        return received.tensors

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        (name,) = trained.down.parts()
        return replace(Packet.join({name: Packet(trained.tensors)}), scalars=trained.scalars), trained.own


@dataclass(frozen=True)
class ClusterServer(Server):
    """Sends every device the model of its cluster.

    state: `model` is the parent's; `clusters` has for each cluster its `weights` and the `samples` behind them;
    `members` has for each device the name of its cluster.
    """

    options: ClusterOptions

    def init(self, task: Task, context: Context) -> State:
        return {**super().init(task, context), CLUSTERS: {}, MEMBERS: {}}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        parts = down.parts()
        members = dict(parts.pop(MEMBERS, Packet()).tags)
        parent = dict(parts.pop(PARENT, Packet()).tensors)
        clusters = {name: {WEIGHTS: dict(part.tensors)} for name, part in parts.items()}
        return {MODEL: parent, CLUSTERS: clusters, MEMBERS: members}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        parent = Packet.join({PARENT: Packet(state[MODEL])})
        models = {name: Packet.join({name: Packet(kept[WEIGHTS])}) for name, kept in state[CLUSTERS].items()}
        members = state[MEMBERS]
        packets = {device: models.get(members.get(device, ""), parent) for device in view.devices}
        if view.nodes:
            tensors = {name: value for each in (parent, *models.values()) for name, value in each.tensors.items()}
            tags = {f"{MEMBERS}/{device}": cluster for device, cluster in members.items()}
            packets.update(dict.fromkeys(view.nodes, Packet(tensors, tags=tags)))
        return ask_each(self, task, view, context, packets)

    def check(self, task: Task, up: Packet) -> str | None:
        parts = list(up.parts().values())
        return model_mismatch(task, parts[0]) if len(parts) == 1 else f"it has {len(parts)} models instead of one"

    def move(self, state: State, means: Mapping[str, Packet]) -> State:
        """The state with the mean of a cluster's uploads as its model, for every cluster in `means`."""
        clusters = dict(state[CLUSTERS])
        for name, mean in sorted(means.items()):
            if not has_no_samples(mean):
                weights = {key: value.to(state[MODEL][key].dtype) for key, value in mean.tensors.items()}
                clusters[name] = {WEIGHTS: {**state[MODEL], **weights}, SAMPLES: mean.scalars[SAMPLES]}
        total = mean_of_models((kept[WEIGHTS], kept[SAMPLES]) for kept in clusters.values() if kept[SAMPLES])
        if total is None:
            return state
        parent = dict(total.tensors)
        if self.options.parent_weight:
            clusters = {name: {**kept, WEIGHTS: self._near(kept[WEIGHTS], parent)} for name, kept in clusters.items()}
        return {**state, MODEL: parent, CLUSTERS: clusters}

    def _near(self, weights: Weights, parent: Weights) -> dict[str, Tensor]:
        """The weights, moved towards the parent's. Integer tensors, such as counters, become the parent's."""
        weight = self.options.parent_weight
        return {
            name: torch.lerp(value, parent[name], weight) if value.is_floating_point() else parent[name]
            for name, value in weights.items()
        }


@dataclass(frozen=True)
class OneShotServer(ClusterServer):
    """Finds `k` clusters of devices once, by K-means on the directions of the first round's updates.

    A device that is first heard later trains the parent's model, and joins the cluster in the direction of its update.
    If the first round has fewer than `k` uploads, there are as many clusters as uploads.
    """

    options: OneShotOptions

    @property
    def reducer(self) -> Reducer:
        # The models of newcomers stay separate, because only the root finds out where they belong.
        return Named({PARENT: Collect(), **{str(number): WeightedMean() for number in range(self.options.k)}})

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        means = combined.parts()
        newcomers = {
            device: up for device, up in sorted(means.pop(PARENT, Packet()).parts().items()) if not has_no_samples(up)
        }  # a device that did not train has no direction, and belongs to no cluster yet
        if not newcomers:
            return self.move(state, means)
        moves = directions(task, state[MODEL], list(newcomers.values()))
        if state[CLUSTERS]:
            found = nearest_clusters(task, state, moves)
        else:
            labels = cluster_labels(moves, min(self.options.k, len(moves)), context.generator("clusters"))
            found = [str(label) for label in labels.tolist()]
        joined = dict(zip(newcomers, found, strict=True))
        for device, cluster in joined.items():
            means[cluster] = add_upload(WeightedMean(), means.get(cluster), device, newcomers[device])
        return {**self.move(state, means), MEMBERS: {**state[MEMBERS], **joined}}


def directions(task: Task, start: Weights, models: Sequence[Packet]) -> Tensor:
    """What each model learned since `start`, as a vector of length 1 with at most 4096 values, one row per model.

    Longer updates are projected: all values that are 4096 places apart are added, each with a fixed random sign. That
    preserves inner products in expectation. The length is left out, because it says how much a device trained.
    """
    count = sum(start[name].numel() for name in task.model.parameters)
    width = min(count, MAX_DIRECTION)
    rows = -(-count // width)
    signs = torch.randint(0, 2, (rows * width,), generator=torch.Generator().manual_seed(0)) * 2 - 1
    found = []
    for model in models:
        flat = torch.cat([(model.tensors[name] - start[name]).flatten() for name in task.model.parameters])
        if rows > 1:
            padded = torch.nn.functional.pad(flat, (0, rows * width - count))
            flat = (padded * signs.to(padded)).view(rows, width).sum(0)
        found.append(flat.cpu())
    return torch.nn.functional.normalize(torch.stack(found), dim=1)


def nearest_clusters(task: Task, state: State, moves: Tensor) -> list[str]:
    """For each row of `moves`, the cluster whose direction, seen from the parent's model, has the largest cosine."""
    models = {name: Packet(kept[WEIGHTS]) for name, kept in state[CLUSTERS].items()}
    cosines = moves @ directions(task, state[MODEL], list(models.values())).T
    names = list(models)
    return [names[position] for position in cosines.argmax(1).tolist()]


def cluster_labels(points: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """The cluster of each point by the best of several K-means; clusters are numbered as they first occur."""
    best, least = torch.zeros(len(points), dtype=torch.long), float("inf")
    for _ in range(RESTARTS if clusters > 1 else 0):
        centres = k_means(points, clusters, generator)
        labels = nearest_centres(points, centres)
        error = float((points - centres[labels]).square().sum())
        if error < least:
            best, least = labels, error
    numbers = {label: number for number, label in enumerate(dict.fromkeys(best.tolist()))}
    return torch.tensor([numbers[label] for label in best.tolist()])


def model_of(state: State, cluster: str | None) -> Weights:
    """The model of a cluster; the parent's if there is no such cluster."""
    kept = state[CLUSTERS].get(cluster)
    weights: Weights = state[MODEL] if kept is None else kept[WEIGHTS]
    return weights
