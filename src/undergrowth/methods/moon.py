"""MOON (Li et al. 2021): FedAvg with features that stay near the global model's and leave the device's last ones.

Down: w. A device minimises its loss + mu·c with, for every sample,
c = −log(exp(s(z, z_glob)/τ) / (exp(s(z, z_glob)/τ) + exp(s(z, z_prev)/τ)));
z are the features that enter the last layer of the model in training, z_glob those of the received model, z_prev those
of the model that the device itself sent last, s is the cosine similarity and τ the temperature. Up: w_k and n_k.
A device that is asked for the first time takes the received model as its previous one: the two sides then cancel
and it trains as in FedAvg. With mu = 0 it is FedAvg, bit for bit.

Departures: the paper puts a projection of two layers before the comparison; here the model stays as it is. z_glob and
z_prev are of models that stand still, in evaluation mode as in the authors' code, and are computed once for a job
instead of in every epoch: the same values at a fraction of the price.

    >>> import undergrowth as ug
    >>> result = ug.run(method="moon", options={"mu": 0.1}, rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import Carry, Context, Method, Packet, Shard, State, Steps, Task, option
from undergrowth.learning import Averaging, Contrastive, CrossEntropy, GradientClient, with_references


@dataclass(frozen=True)
class Remembering(GradientClient):
    """Keeps the model that it sent, to tell the next one from it."""

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        carry, steps = super().begin(task, down, shard, own, context)
        return carry, with_references(task, steps, shard, down.tensors, own.get("model"))

    def send(self, task: Task, down: Packet, trained: Packet, own: State) -> tuple[Packet, State]:
        return trained, {"model": dict(trained.tensors)}


@dataclass(frozen=True)
class Moon(Method):
    mu: float = option(0.1, "strength of the contrastive term", at_least=0)
    temperature: float = option(0.5, "divides the similarities: the lower, the more the nearest counts", above=0)

    server = Averaging()

    @property
    def client(self) -> GradientClient:  # type: ignore[override]
        if not self.mu:
            return GradientClient()
        return Remembering(CrossEntropy() + self.mu * Contrastive(self.temperature))
