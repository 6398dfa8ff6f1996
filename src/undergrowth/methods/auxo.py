"""Auxo-like clusters (Liu et al. 2022; Iacob, thesis, §2.4.1.2, §3.4): clusters that split, and devices that explore.

Clusters are the leaves of a binary tree; at first there is one, "0". Down: w_c, the model of the cluster that the
device tries in this round. A device: E epochs of SGD from w_c. Up: w_i and its number of samples n_i. The direction of
its update is g_i = (w_i − w_c) / ‖w_i − w_c‖. For each cluster c, the server computes the following from the n uploads
of its members, with m the mean of their g_i. Devices that only explore c get a reward there and change nothing else,
unless no member answered.
- Split. 2-means divides the g_i. With S = Σ ‖g_i − m‖² before and S' after, a split removes the variance
  (S − S'·(n − 1)/(n − 2)) / n of vectors of length 1. The factor makes it 0 for independent noise. If it is at least
  `gain`, both halves have two uploads or more, and there are fewer than `max_clusters` clusters, c becomes the two
  clusters c0 and c1.
- Reward of device i at its cluster: g_i·m / ‖m‖² − 1/2, averaged with its earlier reward there. The first term is its
  cosine to m divided by the mean cosine. A device with less than half of the mean has a negative reward.
- Model: w_c ← Σ n_i·w_i / Σ n_i. The model of the common parent of all clusters is w = Σ N_c·w_c / Σ N_c, where N_c are
  the samples of the last uploads of c. With parent_weight = p every cluster then moves towards it:
  w_c ← (1 − p)·w_c + p·w.
In the next round a device tries the cluster with its highest reward, or with the probability explore·0.9^round a random
one. A cluster that it has not tried counts with the reward of the nearest one that it has, times 1/2 for every step up
to their most recent common ancestor. Equal rewards are decided at random. A device that is first heard later is sent w
and joins the cluster with the largest cosine of w_i − w and w_c − w.

What is evaluated: w as the run's accuracy, every w_c as "cluster-00", "cluster-01", …, and each device with the model
of the cluster of its highest reward. A tree gives what a star gives; its edge servers pass on each upload separately.

Taken from the thesis: hierarchical splits where they reduce heterogeneity, exploration and exploitation with a reward
from the distance to the cluster's average, its propagation by distance in the tree, and the common parent. Simplified:
everything starts from one cluster instead of a first K-means; the server keeps the rewards; the forms of reward,
criterion and decay are those above; a cluster is never abandoned; exploring devices do not train it.

    >>> import undergrowth as ug
    >>> result = ug.run(method="auxo", options={"max_clusters": 4}, clients=6, rounds=2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from undergrowth.core import Collect, Context, Method, Packet, State, Task, WeightedMean, Weights, add_upload, option
from undergrowth.core.names import MODEL
from undergrowth.learning.cluster_models import (
    CLUSTERS,
    MEMBERS,
    PARENT,
    WEIGHTS,
    ClusterClient,
    ClusterOptions,
    ClusterServer,
    cluster_labels,
    directions,
    model_of,
    nearest_clusters,
)
from undergrowth.learning.servers import has_no_samples

FIRST = "0"  # the name of the first cluster; the two halves of a cluster have its name and one digit more
REWARDS = "rewards"  # of the server's state: device → cluster → reward
FEWEST = 2  # uploads of a half
PROPAGATION, CALMING = 0.5, 0.9  # factors: of a reward for every step in the tree, of the exploration for every round


@dataclass(frozen=True)
class AuxoServer(ClusterServer):
    """Splits clusters, rewards devices and chooses the cluster that each tries next, which is in `members`."""

    options: Auxo
    reducer = Collect()

    def init(self, task: Task, context: Context) -> State:
        return {**super().init(task, context), REWARDS: {}}

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        # A device that did not train has no direction.
        uploads = {device: up for device, up in sorted(combined.parts().items()) if not has_no_samples(up)}
        tried = _tried(task, state, uploads)
        rewards = {device: dict(known) for device, known in state[REWARDS].items()}
        clusters = dict(state[CLUSTERS])
        means: dict[str, Packet] = {}
        open_places = self.options.max_clusters - max(1, len(clusters))
        for cluster in sorted({name for name, _ in tried.values()}):
            moves = {device: move for device, (name, move) in tried.items() if name == cluster}
            members = [device for device in moves if not _explores(state, device, cluster)] or list(moves)
            rows = torch.stack([moves[device] for device in members])
            halves = split(rows, self.options.gain, context.generator(f"split {cluster}")) if open_places > 0 else None
            if halves is not None:
                open_places -= 1
                clusters.pop(cluster, None)
            names = [cluster if halves is None else f"{cluster}{half}" for half in halves or [0] * len(members)]
            centres = {name: rows[[own == name for own in names]].mean(0) for name in sorted(set(names))}
            for device, name in zip(members, names, strict=True):
                means[name] = add_upload(WeightedMean(), means.get(name), device, _model_in(uploads[device]))
            joined = dict(zip(members, names, strict=True))
            for device, move in moves.items():
                found = {name: _reward_for(move, centre) for name, centre in centres.items()}
                name = joined.get(device) or max(found, key=found.__getitem__)
                known = rewards.setdefault(device, {})
                if halves is not None:
                    known.pop(cluster, None)
                known[name] = (known[name] + found[name]) / 2 if name in known else found[name]
        after = self.move({**state, CLUSTERS: clusters}, means)
        return {**after, REWARDS: rewards, MEMBERS: self._next_clusters(rewards, list(after[CLUSTERS]), context)}

    def _next_clusters(self, rewards: State, clusters: list[str], context: Context) -> dict[str, str]:
        """The cluster that each device tries in the next round."""
        if not clusters:  # no device had samples
            return {}
        chance = self.options.explore * CALMING**context.round
        draws = torch.rand(len(rewards), 2, generator=context.generator("explore")).tolist()
        return {
            device: _drawn(clusters if explores < chance else best_clusters(rewards[device], clusters), draw)
            for device, (explores, draw) in zip(sorted(rewards), draws, strict=True)
        }


def _tried(task: Task, state: State, uploads: Mapping[str, Packet]) -> dict[str, tuple[str, Tensor]]:
    """For each device the cluster that its upload belongs to, and the direction of its update."""
    trained = {device: next(iter(up.parts())) for device, up in uploads.items()}
    found: dict[str, tuple[str, Tensor]] = {}
    for name in set(trained.values()):
        devices = [device for device in uploads if trained[device] == name]
        received = state[MODEL] if name == PARENT else state[CLUSTERS][name][WEIGHTS]
        moves = directions(task, received, [uploads[device].part(name) for device in devices])
        clusters = [name if name != PARENT else FIRST] * len(devices)
        if name == PARENT and state[CLUSTERS]:
            clusters = nearest_clusters(task, state, moves)
        found.update(zip(devices, zip(clusters, moves, strict=True), strict=True))
    return {device: found[device] for device in uploads}


def _model_in(up: Packet) -> Packet:
    """The uploaded model with the scalars of the upload."""
    (model,) = up.parts().values()
    return Packet(model.tensors, {name: value for name, value in up.scalars.items() if "/" not in name})


def split(moves: Tensor, gain: float, generator: torch.Generator) -> list[int] | None:
    """Which half each direction belongs to; None if a split does not remove `gain` of variance."""
    count = len(moves)
    if count < 2 * FEWEST:
        return None
    halves = cluster_labels(moves, 2, generator)
    groups = [moves[halves == half] for half in (0, 1)]
    if min(len(group) for group in groups) < FEWEST:
        return None
    before, after = _scatter(moves), sum(_scatter(group) for group in groups)
    removed = (before - after * (count - 1) / (count - 2)) / count
    return halves.tolist() if removed >= gain else None


def _scatter(rows: Tensor) -> float:
    """Σ ‖row − mean‖²."""
    return float((rows - rows.mean(0)).square().sum())


def _reward_for(move: Tensor, mean: Tensor) -> float:
    """g·m / ‖m‖² − 1/2."""
    return float(move @ mean / mean.square().sum().clamp_min(1e-12) - 0.5)


def _explores(state: State, device: str, cluster: str) -> bool:
    """Whether the device tries a cluster that is not the one of its highest reward."""
    known = state[REWARDS].get(device)
    return bool(known) and cluster not in best_clusters(known, list(state[CLUSTERS]))


def best_clusters(known: Mapping[str, float], clusters: list[str]) -> list[str]:
    """The clusters with the highest reward of a device, which knows those of the clusters that it tried."""
    values = {cluster: _reward(known, cluster) for cluster in clusters}
    highest = max(values.values())
    return [cluster for cluster, value in values.items() if value == highest]


def _reward(known: Mapping[str, float], cluster: str) -> float:
    """The reward at a cluster, or if it was not tried the highest at the nearest clusters, times 1/2 for every step."""
    if cluster in known:
        return known[cluster]
    steps = {name: len(cluster) - _shared_digits(cluster, name) for name in known}
    nearest = min(steps.values())
    return max(known[name] for name in known if steps[name] == nearest) * PROPAGATION**nearest


def _shared_digits(one: str, other: str) -> int:
    """The number of digits that two names begin with alike: the depth of the most recent common ancestor."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _drawn(clusters: list[str], draw: float) -> str:
    return clusters[min(int(draw * len(clusters)), len(clusters) - 1)]


@dataclass(frozen=True)
class Auxo(ClusterOptions, Method):
    max_clusters: int = option(8, "largest number of clusters", at_least=1)
    gain: float = option(0.15, "variance of unit vectors that a split must remove", above=0, at_most=1)
    explore: float = option(0.2, "probability that a device tries a random cluster, at first", at_least=0, at_most=1)

    client = ClusterClient()

    @property
    def server(self) -> AuxoServer:
        return AuxoServer(self)

    def personal(self, task: Task, state: State, own: State, device: str) -> Weights:
        return model_of(state, cluster_of(state, device))


def cluster_of(state: State, device: str) -> str | None:
    """The cluster of the device's highest reward; None if it has none yet."""
    known = state[REWARDS].get(device)
    return best_clusters(known, list(state[CLUSTERS]))[0] if known and state[CLUSTERS] else None
