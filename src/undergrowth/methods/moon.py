"""MOON (Li et al. 2021): FedAvg with features near the global model's and away from the device's previous model's.

Down: w. A device minimises its loss + mu·c with, for every sample,
c = −log(exp(s(z, z_glob)/τ) / (exp(s(z, z_glob)/τ) + exp(s(z, z_prev)/τ))).
z are the features that enter the last layer of the model in training, z_glob those of the received model, z_prev those
of the model that the device sent last, s is the cosine similarity and τ the temperature. Up: w_k and n_k.
A device that is asked for the first time uses the received model as its previous one: c is then constant and it trains
as in FedAvg. With mu = 0 it is FedAvg, bit for bit. With reduced_epochs stragglers do that many epochs, "MOON+" of Shi
(Sheffield thesis, §4.5.2); with f_n they are drawn at random, each round or once.

The paper compares the outputs of a projection head of two layers, and its classifier works on these outputs, also for
the baselines. So the head is an option of the model, for every method: `model: {name: cnn, projection: 256}`. With it z
are the outputs of the projection, and the classifier is the last layer above it. By default there is none.

Departures: z_glob and z_prev are computed once per job instead of in every epoch. Their models are fixed and in
evaluation mode, as in the authors' code, so the values are the same at a fraction of the price. With `data.augment`
every epoch has other inputs, and both are computed for each.

    >>> import undergrowth as ug
    >>> result = ug.run(method="moon", options={"mu": 0.1}, model_options={"projection": 32}, rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import Method, option
from undergrowth.learning import Contrastive, ContrastiveClient, GradientClient, StragglerOptions, TaskLoss
from undergrowth.learning.servers import AveragingServer


@dataclass(frozen=True)
class Moon(StragglerOptions, Method):
    mu: float = option(0.1, "strength of the contrastive term", at_least=0)
    temperature: float = option(0.5, "divides the similarities: the lower, the more the nearest counts", above=0)

    @property
    def server(self) -> AveragingServer:
        return self.averaging_server()

    @property
    def client(self) -> GradientClient:
        if not self.mu:
            return GradientClient()
        return ContrastiveClient(TaskLoss() + self.mu * Contrastive(self.temperature))
