"""FedAvg (McMahan et al. 2017): devices train the model, the server averages.

Down: w. A device: E epochs of SGD from w. Up: w_k and its number of samples n_k.
Server: w ← w + server_lr·Σ p_k·(w_k − w), p_k = n_k / Σ n. With server_lr = 1 that is the mean.

Stragglers are dropped at the deadline. With reduced_epochs they do that many epochs instead, "FedAvg+" of Shi
(Sheffield thesis, §4.5.2); with f_n they are drawn at random, each round or once.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedavg", rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import Method, option
from undergrowth.learning import AveragingServer, GradientClient, StragglerOptions


@dataclass(frozen=True)
class FedAvg(StragglerOptions, Method):
    server_lr: float = option(1.0, "step of the server towards the mean", at_least=0)

    client = GradientClient()

    @property
    def server(self) -> AveragingServer:
        return self.averaging_server(self.server_lr)
