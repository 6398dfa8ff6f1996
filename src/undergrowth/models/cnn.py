"""The FEMNIST network of LEAF: two 5×5 convolutions, each followed by pooling, and one hidden layer."""

from __future__ import annotations

from torch import nn

from undergrowth.models.architecture import Architecture
from undergrowth.models.layers import Layers
from undergrowth.models.staged import Staged


def make(shape: tuple[int, ...], classes: int, layers: Layers, hidden: int) -> Staged:
    """Features at `low`, `mid` and `up` are feature maps, so that methods that use maps can use all three levels.

    `mid` and `up` are before and after the second pooling: they have the same layers below, but the features at `up`
    are a quarter of the size. The hidden layer has 512 units by default; LEAF uses 2048 (`hidden=2048`).
    """
    channels, height, width = shape
    features = 64 * (height // 4) * (width // 4)
    stages: dict[str, nn.Module] = {
        "convolution1": nn.Sequential(layers.convolution(channels, 32, 5, bias=True)),
        "pool1": nn.Sequential(nn.MaxPool2d(2), nn.ReLU()),  # equal to ReLU before pooling, on a quarter of the values
        "convolution2": nn.Sequential(layers.convolution(32, 64, 5, bias=True), nn.ReLU()),
        "pool2": nn.MaxPool2d(2),
        "hidden": nn.Sequential(nn.Flatten(), layers.linear(features, hidden), nn.ReLU()),
        "head": layers.linear(hidden, classes, last=True),
    }
    return Staged(stages, {"low": "convolution2", "mid": "pool2", "up": "hidden", "head": "head"})


CNN = Architecture(
    name="cnn",
    title="The FEMNIST network of LEAF, for any image size",
    source="Caldas et al., LEAF: A Benchmark for Federated Settings, 2018",
    make=make,
    takes="images",
    norms={"none": 4},
    init="zero-last",
    shape=(1, 28, 28),
    classes=62,
    options={"hidden": 512},
    meanings={"hidden": "units of the hidden layer"},
)
