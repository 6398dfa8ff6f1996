"""FedAvg (McMahan et al. 2017): devices train the model, the server averages.

Down: w. A device: E epochs of SGD from w. Up: w_k and its number of samples n_k.
Server: w ← w + server_lr·Σ p_k·(w_k − w), p_k = n_k / Σ n. With server_lr = 1 that is the mean.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedavg", rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import Method, option
from undergrowth.learning import Averaging, GradientClient


@dataclass(frozen=True)
class FedAvg(Method):
    server_lr: float = option(1.0, "step of the server towards the mean", at_least=0)

    client = GradientClient()

    @property
    def server(self) -> Averaging:  # type: ignore[override]
        return Averaging(self.server_lr)
