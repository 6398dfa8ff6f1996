"""FedProx (Li et al. 2020): FedAvg with a proximal term that keeps devices near the received model.

A device minimises its loss + (mu/2)·‖w_k − w‖². With mu = 0 it is FedAvg, bit for bit.
A device that cannot finish by the deadline sends the model that it has by then. With reduced_epochs stragglers do that
many epochs, or with random_epochs a random number of them: "FedProx+" of Shi (Sheffield thesis, §4.5.2 and §5.6). With
f_n they are drawn at random, each round or once.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedprox", options={"mu": 0.1}, rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import Method, option
from undergrowth.learning import AveragingServer, GradientClient, Proximal, StragglerOptions, TaskLoss


@dataclass(frozen=True)
class FedProx(StragglerOptions, Method):
    mu: float = option(0.01, "strength of the proximal term", at_least=0)

    @property
    def server(self) -> AveragingServer:
        return self.averaging_server(accepts_partial=True)

    @property
    def client(self) -> GradientClient:
        return GradientClient(TaskLoss() + Proximal(self.mu) if self.mu else TaskLoss())
