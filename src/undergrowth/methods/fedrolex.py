"""FedRolex (Alam et al. 2022): every device trains a window of channels that rolls by one channel a round.

Down: the slice of w with the channels j, j+1, …, j+r·C−1 (modulo C) of every hidden layer of C channels, r and j, where
j counts the rounds. A device: E epochs of SGD on that smaller model. Up: the slice, n_k, r, j.
Server: every coordinate i ← Σ n_k·w_k,i / Σ n_k over the devices k whose window has it; one that nobody has keeps its
value. In C rounds even the narrowest window has been everywhere, so no part of the model is left to the strong devices.

r is that of HeteroFL: by the device's speed against the fastest that the same server sees, or dealt in turn where all
are alike. Layers of GroupNorm roll by one of their groups. With ratios=(1.0,) it is FedAvg, bit for bit.

Departures: coordinates are weighed by samples, where the paper weighs all devices alike; the scaler and the static
BatchNorm of its experiments are left out, as in heterofl. A lossy codec with error feedback would add what it lost to
the channels of the next window, which are others: write `links: {feedback: false}` with one.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedrolex", options={"ratios": [1.0, 0.5]}, model="mlp", fleet="mixed-edge", rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import Method, option
from undergrowth.learning import RATIOS, SliceClient, Slicing, check_ratios


@dataclass(frozen=True)
class FedRolex(Method):
    ratios: tuple[float, ...] = option(RATIOS, "shares of the channels that devices may get", above=0, at_most=1)

    client = SliceClient()

    def check(self) -> None:
        check_ratios(self.ratios)

    @property
    def server(self) -> Slicing:  # type: ignore[override]
        return Slicing(self.ratios, rolls=True)
