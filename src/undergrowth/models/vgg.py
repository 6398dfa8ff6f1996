"""VGG-16 for small images: thirteen convolutions in five blocks, two hidden layers of 4096, the head.

At 32×32 the last map has one pixel, so the hidden layers get 512 features. With ten classes the model has 33.64 M
parameters, the 33.6 M (128.4 MB) of Desai (REFT, 2023). For larger images the last map is averaged to one pixel. It has
no dropout.
"""

from __future__ import annotations

from torch import nn

from undergrowth.models.architecture import Architecture
from undergrowth.models.layers import Layers
from undergrowth.models.staged import Staged

# Convolutions in each block, and the channels of each as a multiple of the first block's.
BLOCKS = ((2, 1), (2, 2), (3, 4), (3, 8), (3, 8))


def make(shape: tuple[int, ...], classes: int, layers: Layers, width: int, hidden: int) -> Staged:
    """Levels low, mid and up are after the first, the third and the last of the five blocks."""
    stages: dict[str, nn.Module] = {}
    inputs = shape[0]
    for number, (count, multiple) in enumerate(BLOCKS, start=1):
        block: list[nn.Module] = []
        for _ in range(count):
            # Normalisation has a shift; a bias before it would have no effect.
            block += [layers.convolution(inputs, multiple * width, 3, bias=layers.norm == "none")]
            block += [layers.normalisation(multiple * width), nn.ReLU()]
            inputs = multiple * width
        stages[f"block{number}"] = nn.Sequential(*block, nn.MaxPool2d(2))
    stages["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    stages["hidden1"] = nn.Sequential(layers.linear(inputs, hidden), nn.ReLU())
    stages["hidden2"] = nn.Sequential(layers.linear(hidden, hidden), nn.ReLU())
    stages["head"] = layers.linear(hidden, classes, last=True)
    return Staged(stages, {"low": "block2", "mid": "block4", "up": "pool", "head": "head"})


VGG_16 = Architecture(
    name="vgg-16",
    title="VGG of 16 layers for small images",
    source="Simonyan and Zisserman, Very Deep Convolutional Networks, 2015",
    make=make,
    takes="images",
    # Five poolings: 32 pixels become one.
    norms={"batch": 32, "group": 32, "none": 32},
    init="he-out",
    options={"width": 64, "hidden": 4096},
    meanings={"width": "channels of the first block", "hidden": "units of each of the two hidden layers"},
)
