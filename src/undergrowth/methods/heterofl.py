"""HeteroFL (Diao et al. 2021): every device trains the first channels of every layer, in a number that fits its speed.

Down: the slice of w with the first r·C of the C channels of every hidden layer (rounded up; the input and the classes
are never sliced), r and an offset of 0. A device: E epochs of SGD on that smaller model. Up: the slice, n_k, r.
Server: every coordinate i ← Σ n_k·w_k,i / Σ n_k over the devices k whose slice has it; a coordinate in no slice keeps
its value. With ratios=(1.0,) it is FedAvg, bit for bit.

r is the largest of `ratios` whose slice has about the fraction of the weights that the device has of the fastest one's
speed, so that all take about as long. Devices of equal speed are assigned the ratios in turn. The fastest device is
that of the same server: in a tree every edge server compares its own. Layers of GroupNorm are sliced by whole groups.

Departures: the paper's scaler (activations times 1/r in training) is left out, so a model without normalisation has
smaller signals in its slices; the paper's masked cross-entropy (only over the classes that a device has) is left out;
BatchNorm keeps running statistics, averaged per coordinate like weights, where the paper measures them once at the
end (static BatchNorm). Coordinates are weighed by samples, where the paper weighs all devices equally.

    >>> import undergrowth as ug
    >>> result = ug.run(method="heterofl", options={"ratios": [1.0, 0.5]}, model="mlp", fleet="mixed-edge", rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import Method
from undergrowth.learning import SliceClient, WidthOptions, WidthServer


@dataclass(frozen=True)
class HeteroFL(WidthOptions, Method):
    client = SliceClient()

    @property
    def server(self) -> WidthServer:
        return WidthServer(self)
