"""HeteroFL (Diao et al. 2021): every device trains the first channels of every layer, as many as suit it.

Down: the slice of w with the first r·C of the C channels of every hidden layer (rounded up; the input and the classes
stay whole), r and an offset, which is 0. A device: E epochs of SGD on that smaller model. Up: the slice, n_k, r.
Server: every coordinate i ← Σ n_k·w_k,i / Σ n_k over the devices k whose slice has it; one that nobody has keeps its
value. With ratios=(1.0,) it is FedAvg, bit for bit.

r is the largest of `ratios` whose slice has about the share of the weights that the device has of the fastest one's
speed, so that all take about as long; devices that are all alike are dealt the ratios in turn. The fastest is that of
the devices which the same server sees: in a tree every edge server compares its own. Layers of GroupNorm are sliced by
whole groups.

Departures: the paper's scaler (activations times 1/r in training) is left out, so a model without normalisation has
smaller signals in its slices; the paper's masked cross-entropy (only over the classes that a device has) is left out;
BatchNorm keeps running statistics, averaged per coordinate like weights, where the paper measures them once at the
end (static BatchNorm). Coordinates are weighed by samples, where the paper weighs all devices alike.

    >>> import undergrowth as ug
    >>> result = ug.run(method="heterofl", options={"ratios": [1.0, 0.5]}, model="mlp", fleet="mixed-edge", rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import Method, option
from undergrowth.learning import RATIOS, SliceClient, Slicing, check_ratios


@dataclass(frozen=True)
class HeteroFL(Method):
    ratios: tuple[float, ...] = option(RATIOS, "shares of the channels that devices may get", above=0, at_most=1)

    client = SliceClient()

    def check(self) -> None:
        check_ratios(self.ratios)

    @property
    def server(self) -> Slicing:  # type: ignore[override]
        return Slicing(self.ratios)
