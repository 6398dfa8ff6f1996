"""LoRA (Hu et al. 2021) in a federation: devices train low-rank adapters of a frozen model, the server averages them.

A linear layer y = W·x + b becomes y = W·x + b + (alpha / rank)·B·A·x; A starts random and B at zero. Down: A, B and the
head. A device: E epochs of SGD on these. Up: the same and its number of samples n_k. Server: the mean, weighted by
n_k. W and everything else is frozen: devices have it like the program, and it is neither sent nor averaged.

layers: the linear layers that get adapters, by name or pattern ("query", "layer1.*"). By default those are the query,
key and value projections of attention, or all linear layers below the head of a model without attention. A model that
starts from random weights has nothing to adapt: give `start.weights`, an `hf:` model, or pretrain with `start.data`;
what comes before the first round trains the model without adapters.

The method is FedAvg on a model with adapters. `model: {lora: {rank: 8}}` makes such a model for any other method,
such as fedprox, fedadam or fedmezo.

    >>> import undergrowth as ug
    >>> result = ug.run(method="lora", model="mlp", options={"rank": 4}, rounds=2)
    >>> result = ug.run(method="fedadam", model="mlp", model_options={"lora": {"rank": 4}}, rounds=2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from undergrowth.core import Method, option
from undergrowth.learning import AveragingServer, GradientClient


@dataclass(frozen=True)
class LoraOptions:
    """Options of methods that train low-rank adapters."""

    rank: int = option(8, "rank of the adapters", at_least=1)
    alpha: float = option(16.0, "adapters are scaled by alpha / rank", above=0)
    layers: tuple[str, ...] = option(
        (), "names or patterns of the layers with adapters; none: projections of attention, or else all linear layers"
    )

    @property
    def model_settings(self) -> Mapping[str, Any]:
        return {"lora": {"rank": self.rank, "alpha": self.alpha, "layers": self.layers}}


@dataclass(frozen=True)
class LoRA(LoraOptions, Method):
    """FedAvg of low-rank adapters."""

    client = GradientClient()
    server = AveragingServer()
