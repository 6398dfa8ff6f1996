"""HeteroFL (Diao et al. 2021): every device trains the first channels of every layer, in a number that fits its speed.

Down: the slice of w with the first r·C of the C channels of every hidden layer (rounded up; the input and the classes
are never sliced), r and an offset of 0. A device: E epochs of SGD on that smaller model. Up: the slice, n_k, r.
Server: every coordinate i ← Σ n_k·w_k,i / Σ n_k over the devices k whose slice has it; a coordinate in no slice keeps
its value.

r is the largest of `ratios` for which (weights of the slice) / (weights of w) is at most about (speed of the device) /
(speed of the fastest device), so that all take about as long. Devices of equal speed are assigned the ratios in turn.
The fastest device is that of the same server: in a tree every edge server compares its own. A device that has too
little memory for that slice, or cannot download, train and upload it by the deadline, gets the next smaller one that it
can do, or else the smallest. Layers of GroupNorm are sliced by whole groups.

statistics (static BatchNorm): devices normalise by their batch while they train and do not send running statistics. In
a round after which the model is evaluated, the devices whose slices arrived are asked a second time: with the new whole
model they run forward over their samples, and send the mean and the variance of the inputs of every BatchNorm layer.
The server pools them: mean Σ n_k·m_k / Σ n_k, variance the mean of the variances plus the variance of the means. The
pass has its own deadline of the same length, and its rows in the ledger; devices that cannot hold the whole model or
would be late are not asked. Without BatchNorm layers there is no pass. With statistics=False, running statistics are
averaged per coordinate like weights; with ratios=(1.0,) too, it is FedAvg, bit for bit.

scaler: in training, the outputs of hidden convolutions and linear layers are divided by the part of their channels that
the slice has (r, unless r·C was rounded up), so that what the next layer sums up is as large as in the whole model.
masked: in a device's cross-entropy, the logits of the classes that it does not have are 0.

Departures: the scaler and the masked cross-entropy are options, where the paper always uses them. Coordinates are
weighed by samples, where the paper weighs all devices equally. The paper's code pools statistics as the plain mean of
the batches' means and variances, without the variance of the means.

    >>> import undergrowth as ug
    >>> options = {"ratios": [1.0, 0.5], "scaler": True}
    >>> result = ug.run(method="heterofl", options=options, model="mlp", fleet="mixed-edge", rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import Method
from undergrowth.learning import SliceOptions, WidthClient, WidthServer, build_slice_client


@dataclass(frozen=True)
class HeteroFL(SliceOptions, Method):
    @property
    def client(self) -> WidthClient:
        return build_slice_client(self)

    @property
    def server(self) -> WidthServer:
        return WidthServer(self)
