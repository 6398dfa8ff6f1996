"""q-FedAvg (Li et al. 2020): the higher the loss of a device, the more it counts.

Objective: Σ p_k/(q + 1)·F_k(w)^(q + 1), p_k = n_k / Σ n. Down: w. A device: F_k, the mean loss of w over its samples
before training, then E epochs of SGD from w. With L = 1 / (learning rate of the devices) and Δw_k = L·(w − w_k),

    Δ_k = F_k^q·Δw_k        h_k = q·F_k^(q − 1)·‖Δw_k‖² + L·F_k^q        w ← w − Σ Δ_k / Σ h_k.

weighting: "samples" multiplies Δ_k and h_k by n_k, as Iacob et al. (2023, "Can fair federated learning reduce the need
for personalisation?") do, who draw devices uniformly. "uniform" leaves them as they are, as the paper does, which draws
devices by their samples. With q = 0 it is FedAvg. F_k is at least 1e-10. mu: FedProx's term (mu/2)·‖w_k − w‖² in the
loss of the devices (Iacob, Cambridge thesis, 2022); a device that cannot finish by the deadline then sends the model
that it has by then.

Departures: a device sends the model w − Δ_k/h_k and the number h_k, and the server takes the mean of these models with
weights h_k, which is the same w. In Δ_k/h_k the powers of F_k cancel, so that neither q = 15 nor a loss near 0 leaves
the range of single precision. Uploads are models so that a lossy link sends changes and remembers what it lost of them,
as for FedAvg. F_k is that of the model in evaluation mode. Buffers of BatchNorm are averaged with the weights h_k.

    >>> import undergrowth as ug
    >>> result = ug.run(method="qfedavg", options={"q": 1.0}, rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from undergrowth.core import Context, Method, Packet, State, Task, WeightedMean, option
from undergrowth.core.names import SAMPLES
from undergrowth.learning import AveragingServer, GradientClient, Proximal, TaskLoss, Trained, mean_loss

H = "h"  # scalar of uploads: h_k, with n_k as a factor if devices are weighed by their samples
LEAST_LOSS = 1e-10


@dataclass(frozen=True, kw_only=True)
class QFedAvgClient(GradientClient):
    """Sends its model, with a change that is shortened by the growth of the loss along it, and how much it counts."""

    options: QFedAvg

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        q, lipschitz, received = self.options.q, 1 / trained.lr, trained.received
        names = trained.task.model.parameters
        loss = max(float(mean_loss(trained.task, received, trained.shard)), LEAST_LOSS)
        changes = (trained.tensors[name] - received[name] for name in names)
        squared_norm = float(torch.stack([value.double().square().sum() for value in changes]).sum())
        # h_k = L·F^(q − 1)·(F + q·L·‖w_k − w‖²) and −Δ_k/h_k = (w_k − w)·F / (F + q·L·‖w_k − w‖²).
        grown = loss + q * lipschitz * squared_norm
        h = lipschitz * loss ** (q - 1) * grown * (trained.samples if self.options.weighting == SAMPLES else 1)
        # lerp with weight 1, that of q = 0, is exactly its end.
        moved = {name: torch.lerp(received[name], trained.tensors[name], loss / grown) for name in names}
        return Packet({**trained.tensors, **moved}, {**trained.scalars, H: h}), trained.own


@dataclass(frozen=True)
class QFedAvgServer(AveragingServer):
    reducer: WeightedMean = WeightedMean(H)

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        # Without a weight no device trained on a sample.
        return super().step(task, state, combined, context) if combined.scalars[H] else state


@dataclass(frozen=True)
class QFedAvg(Method):
    q: float = option(1.0, "degree of fairness; 0 is FedAvg", at_least=0, at_most=25)
    weighting: str = option(SAMPLES, "weight of a device beside its loss", choices=(SAMPLES, "uniform"))
    mu: float = option(0.0, "strength of the proximal term of FedProx", at_least=0)

    @property
    def client(self) -> QFedAvgClient:
        return QFedAvgClient(TaskLoss() + Proximal(self.mu) if self.mu else TaskLoss(), options=self)

    @property
    def server(self) -> QFedAvgServer:
        return QFedAvgServer(accepts_partial=self.mu > 0)
