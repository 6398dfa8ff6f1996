"""K-means clusters (Ghosh et al. 2019; Iacob, thesis, §2.4.1.2 and §3.4): one model per cluster of similar devices.

First round. Down: w. A device: E epochs of SGD from w. Up: w_i and its number of samples n_i. Server: K-means with `k`
centres on the directions (w_i − w) / ‖w_i − w‖ divides the devices into clusters, once.
Later rounds. Down: w_c, the model of the device's cluster. A device: E epochs of SGD from w_c. Up: w_i, n_i.
Server, every round: w_c ← Σ n_i·w_i / Σ n_i over the cluster's devices; the model of their common parent is
w = Σ N_c·w_c / Σ N_c, where N_c are the samples of the last uploads of cluster c. With parent_weight = p every cluster
then moves towards it: w_c ← (1 − p)·w_c + p·w. 0 keeps clusters apart; 1 is FedAvg, if devices of every
cluster take part.

A device that is first heard after the first round is sent w. It joins the cluster with the largest cosine of w_i − w
and w_c − w. Directions of more than 4096 values are projected by fixed random signs first.

What is evaluated: w as the run's accuracy, every w_c as "cluster-0", "cluster-1", …, and each device with the model of
its cluster. A tree gives what a star gives; an edge server is sent all models and the cluster of every device.

Departures from Ghosh et al.: they cluster complete local solutions by their distance, and keep no common model. Here
one round of training is clustered, and by direction only, so that a device's amount of data does not decide.

    >>> import undergrowth as ug
    >>> result = ug.run(method="kmeans-clusters", options={"k": 2}, clients=6, rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import Method, State, Task, Weights
from undergrowth.learning.cluster_models import MEMBERS, ClusterClient, OneShotOptions, OneShotServer, model_of


@dataclass(frozen=True)
class KMeansClusters(OneShotOptions, Method):
    client = ClusterClient()

    @property
    def server(self) -> OneShotServer:
        return OneShotServer(self)

    def personal(self, task: Task, state: State, own: State, device: str) -> Weights:
        return model_of(state, state[MEMBERS].get(device))
