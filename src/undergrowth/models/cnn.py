"""The FEMNIST network of LEAF: two convolutions of 5×5, each with pooling, and one hidden layer."""

from __future__ import annotations

from torch import nn

from undergrowth.models.architecture import Architecture
from undergrowth.models.layers import started
from undergrowth.models.staged import Staged


def make(shape: tuple[int, ...], classes: int, _norm: str, hidden: int) -> Staged:
    """Features at low, mid and up are maps, so that methods which look at maps can use all three.

    `mid` and `up` lie before and after the second pooling: the same layers are below them, but the features
    at `up` are a quarter of the size. The hidden layer has 512 units here; LEAF's has 2048 (`hidden=2048`).
    """
    channels, height, width = shape
    features = 64 * (height // 4) * (width // 4)
    stages: dict[str, nn.Module] = {
        "convolution1": nn.Sequential(started(nn.Conv2d(channels, 32, 5, padding=2))),
        "pool1": nn.Sequential(nn.MaxPool2d(2), nn.ReLU()),  # the same as the other way round, on a quarter of it
        "convolution2": nn.Sequential(started(nn.Conv2d(32, 64, 5, padding=2)), nn.ReLU()),
        "pool2": nn.MaxPool2d(2),
        "hidden": nn.Sequential(nn.Flatten(), started(nn.Linear(features, hidden)), nn.ReLU()),
        "head": started(nn.Linear(hidden, classes), last=True),
    }
    return Staged(stages, {"low": "convolution2", "mid": "pool2", "up": "hidden", "head": "head"})


CNN = Architecture(
    name="cnn",
    title="The FEMNIST network of LEAF, for any image size",
    source="Caldas et al., LEAF: A Benchmark for Federated Settings, 2018",
    make=make,
    takes="images",
    norms={"none": 4},
    shape=(1, 28, 28),
    classes=62,
    options={"hidden": 512},
    meanings={"hidden": "units of the hidden layer"},
)
