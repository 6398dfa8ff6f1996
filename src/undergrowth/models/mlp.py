"""A multilayer perceptron on the flattened input."""

from __future__ import annotations

from math import ceil, prod

from torch import nn

from undergrowth.models.architecture import Architecture
from undergrowth.models.layers import Layers
from undergrowth.models.staged import Staged


def make(shape: tuple[int, ...], classes: int, layers: Layers, hidden: tuple[int, ...]) -> Staged:
    """Levels are after a quarter, a half, three quarters and all of the hidden layers, rounded up.

    With fewer than four hidden layers some levels coincide.
    """
    stages: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    width = prod(shape)
    for number, units in enumerate(hidden, start=1):
        stages[f"hidden{number}"] = nn.Sequential(layers.linear(width, units), nn.ReLU())
        width = units
    stages["head"] = layers.linear(width, classes, last=True)

    above = list(stages)[1:]
    levels = {
        level: above[ceil(len(hidden) * quarters / 4)]
        for quarters, level in enumerate(("low", "mid", "up", "head"), start=1)
    }
    return Staged(stages, levels)


MLP = Architecture(
    name="mlp",
    title="Multilayer perceptron",
    source="with hidden=[200, 200]: the MNIST 2NN of McMahan et al., 2017",
    make=make,
    takes="anything",
    norms={"none": 1},
    init="torch",
    shape=(1, 28, 28),
    options={"hidden": (200,)},
    meanings={"hidden": "units of each hidden layer"},
)
