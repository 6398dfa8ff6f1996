"""TERM (Li et al. 2021): tilted averaging, in which devices with a high loss count more, or less.

Objective: (1/t)·log Σ p_k·exp(t·F_k(w)). Down: w. A device: F_k, the mean loss of w over its n_k
samples before training, then E epochs of SGD from w. Up: w_k, n_k and F_k. Server: w ← Σ a_k·w_k with
a_k = p_k·exp(t·F_k) / Σ p·exp(t·F), p_k = n_k / Σ n. The a_k are the weights that the gradients of the F_k have in the
gradient of the objective. t > 0 favours devices with a high loss, t < 0 devices with a low one, and t = 0 is FedAvg.

weighting: "uniform" gives all devices the same p_k, as the paper does, which draws devices by their samples instead.

In a tree, an edge server sends the mean of the w_k of its own devices with the weights n_k·exp(t·F_k) (n_k = 1 if
uniform), and log Σ n_k·exp(t·F_k). The server weighs the mean by this sum, so every device has the a_k of a star. Edge
servers are not tilted: this is not the hierarchical form of the paper, which has one t for groups and one within them.

Departures: the paper's server takes a step along the mean of the gradients; here devices do E epochs first, as in
Iacob et al. (2023). F_k is that of the model in evaluation mode. Weights are computed as logarithms, so that no loss
and no t overflows. Buffers of BatchNorm are averaged with the same weights.

    >>> import undergrowth as ug
    >>> result = ug.run(method="term", options={"t": 1.0}, rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import Method, Packet, State, TiltedMean, option
from undergrowth.core.names import LOSS, SAMPLES
from undergrowth.learning import AveragingServer, GradientClient, Trained, mean_loss


@dataclass(frozen=True)
class TermClient(GradientClient):
    """Sends, with the trained model, the loss of the received one."""

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        loss = float(mean_loss(trained.task, trained.received, trained.shard))
        return Packet(trained.tensors, {**trained.scalars, LOSS: loss}), trained.own


@dataclass(frozen=True)
class Term(Method):
    t: float = option(
        1.0, "tilt: above 0, devices with a high loss count more; below 0, less", at_least=-1000, at_most=1000
    )
    weighting: str = option(SAMPLES, "weight of a device before the tilt", choices=(SAMPLES, "uniform"))

    client = TermClient()

    @property
    def server(self) -> AveragingServer:
        return AveragingServer(reducer=TiltedMean(self.t, LOSS, SAMPLES if self.weighting == SAMPLES else None))
