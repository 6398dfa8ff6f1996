"""IFCA (Ghosh et al. 2020; Iacob, thesis, §2.4.1.2): each device picks, of k models, the one that fits its data best.

Down: w_1 … w_k. A device i picks c = argmin_j F_i(w_j), its mean loss in evaluation mode on all its training samples,
and trains E epochs of SGD from w_c. Up: w_i for cluster c, and its number of samples n_i.
Server: w_c ← Σ n_i·w_i / Σ n_i over the devices that picked c; w_c stays if no device did. The model of the common
parent is w = Σ N_c·w_c / Σ N_c, where N_c are the samples of the last uploads of cluster c. With parent_weight = p
every cluster then moves towards it: w_c ← (1 − p)·w_c + p·w.

start: random is the paper's: k models with random weights. If two groups of devices pick the same one in the first
round, they may stay together. kmeans: in the first round devices train one model w, as in FedAvg, and K-means on the
directions of their updates makes the first k models: each is the mean of its cluster.

A device remembers its last choice, which is its cluster. Before its first choice it uses the model of the cluster that
K-means put it into, or w. The bytes of all k models are booked on its downlink, and the k passes over its samples in
its FLOPs. What is evaluated: w as the run's accuracy, every w_c as "cluster-0", "cluster-1", …, and each device with
the model of its cluster. A tree gives what a star gives.

Departures: the paper averages models or gradients with equal weights, here by samples; and the parent's model is added.

    >>> import undergrowth as ug
    >>> result = ug.run(method="ifca", options={"k": 2}, clients=6, rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from undergrowth.core import Context, InputError, Method, Packet, Plan, Shard, State, Task, View, Weights, option
from undergrowth.core.client import Carry, Steps
from undergrowth.core.names import FINISH, MODEL, SAMPLES
from undergrowth.learning import GradientClient, Trained, mean_loss
from undergrowth.learning.cluster_models import (
    CLUSTERS,
    MEMBERS,
    PARENT,
    WEIGHTS,
    OneShotOptions,
    OneShotServer,
    model_of,
)

CLUSTER = "cluster"  # of the device's own state


@dataclass(frozen=True)
class IFCAClient(GradientClient):
    """Trains the model with the least loss on its samples. own: `cluster` is the name of that model."""

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        parts = down.parts()
        name = list(parts)[_least_loss(task, [part.tensors for part in parts.values()], shard)]
        carry, steps = super().begin(task, replace(parts[name], scalars=down.scalars), shard, own, context)
        return {**carry, FINISH: {**carry[FINISH], CLUSTER: name}}, steps

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        name = trained.finish[CLUSTER]
        sent = replace(Packet.join({name: Packet(trained.tensors)}), scalars=trained.scalars)
        return sent, trained.own if name == PARENT else {**trained.own, CLUSTER: name}


def _least_loss(task: Task, models: list[Weights], shard: Shard) -> int:
    """The position of the model with the least mean loss on the samples."""
    if len(models) == 1 or not len(shard):
        return 0
    losses = torch.stack([mean_loss(task, weights, shard) for weights in models])
    return 0 if losses.is_meta else int(losses.argmin())  # for the price, every choice is the same


@dataclass(frozen=True)
class IFCAServer(OneShotServer):
    """Sends all models to all devices."""

    options: IFCA

    def init(self, task: Task, context: Context) -> State:
        state = super().init(task, context)
        if self.options.start == "kmeans":
            return state
        others = [task.model.initial(context.key(f"model {number}")) for number in range(1, self.options.k)]
        names = task.model.parameters
        if others and all(torch.equal(others[0][name], state[MODEL][name]) for name in names):
            raise InputError(
                "method.start random: the model starts from the same weights every time, such as those of a file or of "
                "the section start, so all clusters would be equal; choose method.start kmeans"
            )
        return {**state, CLUSTERS: _named([state[MODEL], *others])}

    def steady_state(self, task: Task, state: State) -> State:
        return state if state[CLUSTERS] else {**state, CLUSTERS: _named([state[MODEL]] * self.options.k)}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        models = {name: Packet(kept[WEIGHTS]) for name, kept in state[CLUSTERS].items()}
        return self.ask(task, view, context, Packet.join(models or {PARENT: Packet(state[MODEL])}))


def _named(models: list[Weights]) -> State:
    """Clusters with these models, behind which there are no samples yet."""
    return {str(number): {WEIGHTS: dict(weights), SAMPLES: 0.0} for number, weights in enumerate(models)}


@dataclass(frozen=True)
class IFCA(OneShotOptions, Method):
    start: str = option("kmeans", "where the first models come from", choices=("kmeans", "random"))

    client = IFCAClient()

    @property
    def server(self) -> IFCAServer:
        return IFCAServer(self)

    def personal(self, task: Task, state: State, own: State, device: str) -> Weights:
        return model_of(state, own.get(CLUSTER, state[MEMBERS].get(device)))
