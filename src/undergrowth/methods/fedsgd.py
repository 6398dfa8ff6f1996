"""FedSGD (McMahan et al. 2017): one gradient over all samples of a device in every round.

Down: w. A device: g_k, the gradient of its loss over all its n_k samples at w, in one batch. Up: w_k = w − lr·g_k and
n_k. Server: w ← Σ p_k·w_k = w − lr·Σ p_k·g_k, p_k = n_k / Σ n. If all devices take part and the model has no BatchNorm,
that is a step of gradient descent on the pooled samples.

`train.epochs`, `train.batch` and `train.drop_last` are not used, and a device's momentum has no effect, because it
starts anew in every round. Other optimisers than sgd are refused. The memory that a device needs grows with its number
of samples.

Departures: devices send w_k instead of g_k, which is the same number of bytes. Buffers of BatchNorm are averaged.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedsgd", rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from undergrowth.core import MAX_WHOLE_NUMBER, Context, Method, Packet, Shard, State, Steps, Task
from undergrowth.learning import AveragingServer, GradientClient, Trained, require_sgd


@dataclass(frozen=True)
class FullBatchClient(GradientClient):
    """Takes one step, on all its samples."""

    @property
    def ignored_settings(self) -> frozenset[str]:
        return super().ignored_settings | {"train.drop_last", "train.momentum"}

    def batches(self, task: Task, down: Packet, steps: Steps, shard: Shard, own: State, context: Context) -> Steps:
        # A power of two that holds all samples: engines compute clients together whose batch size is the same.
        return replace(steps, batch=1 << max(0, len(steps.epochs[0]) - 1).bit_length())

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        require_sgd(trained.optimiser)
        return super().upload(trained)


@dataclass(frozen=True)
class FedSGD(Method):
    client = FullBatchClient(epochs=1, batch=MAX_WHOLE_NUMBER)
    server = AveragingServer()
