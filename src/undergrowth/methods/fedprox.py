"""FedProx (Li et al. 2020): FedAvg with a pull back to the model that was received.

A device minimises its loss + (mu/2)·‖w_k − w‖². With mu = 0 it is FedAvg, bit for bit.
With a deadline, a device that cannot finish in time sends what it has by then. With reduced_epochs stragglers do so
many epochs, or with random_epochs a random number of them: "FedProx+" of Shi (Sheffield thesis, §4.5.2 and §5.6); with
f_n they are drawn, each round or once.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedprox", options={"mu": 0.1}, rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import Method, option
from undergrowth.learning import Averaging, CrossEntropy, GradientClient, Proximal, StragglerOptions


@dataclass(frozen=True)
class FedProx(StragglerOptions, Method):
    mu: float = option(0.01, "strength of the pull towards the received model", at_least=0)

    @property
    def server(self) -> Averaging:  # type: ignore[override]
        return self.averaging(accepts_partial=True)

    @property
    def client(self) -> GradientClient:  # type: ignore[override]
        return GradientClient(CrossEntropy() + Proximal(self.mu) if self.mu else CrossEntropy())
