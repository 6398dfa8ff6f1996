"""FedAdam, FedYogi, FedAdagrad (Reddi et al. 2021): an adaptive optimiser at the server.

Δ is the weighted mean of w_k − w (the paper's is unweighted; all methods here weigh by samples).
m ← beta1·m + (1 − beta1)·Δ, w ← w + server_lr·m / (√v + tau), and v by the name of the method.
Buffers of BatchNorm are averaged and pass no optimiser. With server_lr = 0 the parameters stay as they are.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedadam", options={"server_lr": 0.01}, rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from undergrowth.core import Method, option
from undergrowth.learning import Adaptive, GradientClient


@dataclass(frozen=True)
class FedOpt(Method):
    """What the three share; they differ in one word."""

    server_lr: float = option(0.01, "step of the server", at_least=0)
    beta1: float = option(0.9, "memory of the mean change", at_least=0, below=1)
    beta2: float = option(0.99, "memory of the squared change", at_least=0, below=1)
    tau: float = option(1e-3, "degree of adaptivity: the smaller, the more", above=0, at_most=1e15)

    rule: ClassVar[str]
    client = GradientClient()

    @property
    def server(self) -> Adaptive:  # type: ignore[override]
        return Adaptive(self.rule, self.server_lr, self.beta1, self.beta2, self.tau)


@dataclass(frozen=True)
class FedAdam(FedOpt):
    """FedAvg with Adam at the server."""

    rule: ClassVar[str] = "adam"


@dataclass(frozen=True)
class FedYogi(FedOpt):
    """FedAvg with Yogi at the server."""

    rule: ClassVar[str] = "yogi"


@dataclass(frozen=True)
class FedAdagrad(FedOpt):
    """FedAvg with Adagrad at the server."""

    rule: ClassVar[str] = "adagrad"
