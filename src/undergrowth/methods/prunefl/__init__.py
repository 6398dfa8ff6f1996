"""PruneFL (Jiang et al. 2022; a baseline of REFT, Desai 2023): single weights are removed and come back, by importance.

Weights of convolutions and linear layers are pruned one by one; a mask says which are left. Round 1, the initial
pruning: the fastest device that can hold the whole model trains it alone. Later rounds, down: the weights that are
left, and the mask as one bit per weight. A device: E epochs of SGD in which removed weights stay 0. Up: the weights
that are left, and n_k. Server: mean weighted by n_k. In round 1 and then every `every` rounds, devices also send the
gradient g_k of their loss at the received model, for removed weights too, and the server chooses the mask anew, with
g = Σ n_k·g_k / Σ n_k:

    t_j = uses of weight j in the forward pass of a sample: pixels of a convolution's output, 1 in a linear layer
    Γ(M) = Σ_{j∈M} g_j² / (c + Σ_{j∈M} t_j), c = overhead·Σ_j t_j: the importance per unit of time
    M begins with the 1 − ratio of all weights that have the largest |w_j|; the others follow by falling g_j²/t_j, for
    as long as g_j²/t_j ≥ Γ(M), which makes Γ as large as it can be.

So at most `ratio` of the weights are removed. A weight that comes back starts from 0.

Departures: t_j is counted by the devices, where the paper measures it. The paper repeats its initial pruning on one
device until the mask stays; here it is one round. If the device does not answer, the next-fastest one is asked in the
next round, until one has answered. FLOPs do not fall: they are those of dense layers, because devices have no fast
sparse ones. In a tree, the first edge server chooses the fastest of its own devices; if that does not answer, the next
round is another edge server's, and so on in turns. A lossy codec with error feedback would add its error to other
weights once the mask has changed: write `links: {feedback: false}` with such a codec.

    >>> import undergrowth as ug
    >>> result = ug.run(method="prunefl", options={"ratio": 0.6, "every": 2}, rounds=4)
"""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import Method, option
from undergrowth.methods.prunefl.client import MaskedClient, MaskedModel
from undergrowth.methods.prunefl.server import PruneFLServer


@dataclass(frozen=True)
class PruneFL(Method):
    ratio: float = option(0.6, "largest fraction of the weights that is removed", at_least=0, below=1)
    every: int = option(5, "rounds from one choice of the mask to the next", at_least=1)
    overhead: float = option(0.1, "time without any weight, as a fraction of that of all weights", at_least=0)

    client = MaskedClient(view=MaskedModel)

    @property
    def server(self) -> PruneFLServer:
        return PruneFLServer(self)
