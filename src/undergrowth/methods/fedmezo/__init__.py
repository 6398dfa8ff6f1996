"""FedMeZO (zeroth-order federated learning with shared directions): forward passes only, and a few bytes a round.

All devices hold the same model w. Down: a seed and the number of the round, from which every device generates the same
random directions z_1 … z_P, and the mean slopes of the rounds since the device was last asked. The device replays those
rounds (below). Then it measures on all its samples, for each direction, the slope
g_p = (L(w + ε·z_p) − L(w − ε·z_p)) / 2ε, in two passes over batches of `train.batch` samples; the size of the batches
changes the memory, not the result. Up: g_1 … g_P and n_k. Server: the mean of each g_p, weighted by n_k. A replay, at
every device and at the server: w ← w − step_size·(1/P)·Σ g_p·z_p.

The mean slope of all devices is the slope of the loss over all samples. So if all devices take part, the model does not
depend on how many there are and how the samples are distributed. A device that missed rounds gets their slopes, not
the model, and has the same bits afterwards as a device that was there. The directions are the same bits on every
processor (`learning/directions.py`). With two directions a device receives 24 bytes a round and sends 24, whatever the
model: eight each for the seed, the round (in both directions) and n_k, four for a slope. With P directions these are
32 + 8·P. The source counts 1 + 2·P, one byte for each number (its equation 6).

A device that is asked for the first time also gets the model. With initial="seed" it makes the initial weights from the
seed instead, and replays all rounds; that needs a program on the device that builds the same initial model.

A device perturbs its model in place and needs the memory of inference. Perturbing and returning rounds every weight a
little (`learning/zeroth_order.py`). A replay includes these steps, so that devices which measured and devices which did
not have the same bits. Only parameters that are not frozen are perturbed. Dropout is off, and BatchNorm uses the
statistics of the first model, which do not change. `train.epochs` and the settings of gradient descent are not used;
`step_size` replaces `train.lr`, and `train.schedule` applies to it. A lossy codec of the downlink would round the first
model of each device, so that it differs from the server's; slopes pass it unchanged.

Departures: the weights n_k, where the source's algorithm has a plain mean.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedmezo", model="logistic", options={"step_size": 0.03}, rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import Method, option
from undergrowth.learning.zeroth_order import ZerothOrderOptions
from undergrowth.methods.fedmezo.client import FedMeZOClient
from undergrowth.methods.fedmezo.server import FedMeZOServer

SENT, FROM_SEED = "sent", "seed"


@dataclass(frozen=True)
class FedMeZO(ZerothOrderOptions, Method):
    initial: str = option(SENT, "how a device gets its first model", choices=(SENT, FROM_SEED))

    @property
    def client(self) -> FedMeZOClient:
        return FedMeZOClient(self)

    @property
    def server(self) -> FedMeZOServer:
        return FedMeZOServer(self, self.initial == SENT)

    def source_bytes(self, rounds: int, devices: int) -> int:
        """What the source counts for a run without the first model (equation 6): one byte for each number."""
        return rounds * (devices + 2 * devices * self.directions)


__all__ = ["FedMeZO"]
