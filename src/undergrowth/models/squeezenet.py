"""SqueezeNet 1.1: eight fire modules, which squeeze the channels before they widen them. It has no normalisation.

1 235 496 parameters for 1000 classes. The published network classifies every pixel of the last map with a 1×1
convolution and a ReLU, and then averages. Here the map is averaged first, so that the head is a linear layer on 512
features. Files of torchvision's weights can be loaded. There is no dropout.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from undergrowth.models.architecture import Architecture
from undergrowth.models.layers import Layers
from undergrowth.models.staged import Staged

STEM = 64
# Fire modules in each group: squeezed channels, and channels of each of the two widening convolutions.
GROUPS = (((16, 64), (16, 64)), ((32, 128), (32, 128)), ((48, 192), (48, 192), (64, 256), (64, 256)))


class Fire(nn.Module):
    """A 1×1 convolution to few channels, then 1×1 and 3×3 convolutions side by side."""

    def __init__(self, inputs: int, squeezed: int, widened: int, layers: Layers) -> None:
        super().__init__()
        self.squeeze = layers.convolution(inputs, squeezed, 1, bias=True)
        self.widen1 = layers.convolution(squeezed, widened, 1, bias=True)
        self.widen3 = layers.convolution(squeezed, widened, 3, bias=True)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.squeeze(x))
        return torch.cat([self.activation(self.widen1(x)), self.activation(self.widen3(x))], 1)


def make(shape: tuple[int, ...], classes: int, layers: Layers) -> Staged:
    """Levels low, mid and up are after the first, second and third group."""
    first = layers.convolution(shape[0], STEM, 3, 2, bias=True)
    first.padding = (0, 0)  # as published
    stages: dict[str, nn.Module] = {"stem": nn.Sequential(first, nn.ReLU())}
    inputs = STEM
    for number, group in enumerate(GROUPS, start=1):
        blocks: list[nn.Module] = [nn.MaxPool2d(3, 2, ceil_mode=True)]
        for squeezed, widened in group:
            blocks.append(Fire(inputs, squeezed, widened, layers))
            inputs = 2 * widened
        stages[f"group{number}"] = nn.Sequential(*blocks)
    stages["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    stages["head"] = layers.linear(inputs, classes, last=True)
    levels = {"low": "group2", "mid": "group3", "up": "pool", "head": "head"}
    return Staged(stages, levels, published="features.0.weight")


SQUEEZENET = Architecture(
    name="squeezenet",
    title="SqueezeNet 1.1, few parameters without normalisation",
    source="Iandola et al., SqueezeNet: AlexNet-level accuracy with 50× fewer parameters, 2016",
    make=make,
    takes="images",
    # The first convolution and three poolings: 17 pixels become one.
    norms={"none": 17},
    init="he-in",
)
