"""FedAvgM (Hsu et al. 2019): FedAvg with momentum at the server.

v ← momentum·v + Δ and w ← w + server_lr·v, where Δ is the weighted mean of w_k − w.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedavgm", options={"momentum": 0.9}, rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import Method, option
from undergrowth.learning import GradientClient, Momentum


@dataclass(frozen=True)
class FedAvgM(Method):
    momentum: float = option(0.9, "share of the last step that is kept", at_least=0, below=1)
    server_lr: float = option(1.0, "step of the server", at_least=0)

    client = GradientClient()

    @property
    def server(self) -> Momentum:  # type: ignore[override]
        return Momentum(self.server_lr, self.momentum)
