"""Multinomial logistic regression: one linear layer on the flattened input."""

from __future__ import annotations

from math import prod

from torch import nn

from undergrowth.models.architecture import Architecture
from undergrowth.models.layers import Layers
from undergrowth.models.staged import Staged


def make(shape: tuple[int, ...], classes: int, layers: Layers) -> Staged:
    """The model has one layer, so `head` is the only level."""
    return Staged({"flatten": nn.Flatten(), "head": layers.linear(prod(shape), classes, last=True)}, {"head": "head"})


LOGISTIC = Architecture(
    name="logistic",
    title="Logistic regression",
    source="multinomial logistic regression (Cox, 1958)",
    make=make,
    takes="anything",
    norms={"none": 1},
    init="torch",
    shape=(1, 28, 28),
)
