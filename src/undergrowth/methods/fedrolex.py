"""FedRolex (Alam et al. 2022): every device trains a window of channels that rolls by one channel a round.

Down: the slice of w with the channels j, j+1, …, j+r·C−1 (modulo C) of every hidden layer of C channels, r and j, where
j counts the rounds. A device: E epochs of SGD on that smaller model. Up: the slice, n_k, r, j.
Server: every coordinate i ← Σ n_k·w_k,i / Σ n_k over the devices k whose window has it; a coordinate in no window keeps
its value. In C rounds even the narrowest window covers all channels, so slow devices train every part of the model.

r is chosen as in HeteroFL: by the device's speed divided by that of the fastest device of the same server, or in turn
if all are equally fast, and smaller where memory or deadline require it. Layers of GroupNorm roll by one of their
groups. `statistics`, `scaler` and `masked` are as in heterofl. With ratios=(1.0,) and statistics=False it is FedAvg,
bit for bit.

Departures: coordinates are weighed by samples, where the paper weighs all devices equally; the scaler and the masked
cross-entropy of its experiments are options. A lossy codec with error feedback would add its error to the channels of
the next window, which are other channels: write `links: {feedback: false}` with such a codec.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedrolex", options={"ratios": [1.0, 0.5]}, model="mlp", fleet="mixed-edge", rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import Method
from undergrowth.learning import SliceOptions, WidthClient, WidthServer, build_slice_client


@dataclass(frozen=True)
class FedRolex(SliceOptions, Method):
    @property
    def client(self) -> WidthClient:
        return build_slice_client(self)

    @property
    def server(self) -> WidthServer:
        return WidthServer(self, rolls=True)
