"""ResNets of basic blocks: resnet-8 in the CIFAR form, resnet-18 and resnet-34 in the ImageNet form.

resnet-8 is He et al.'s CIFAR form, depth 6n+2 with n=1: one block in each of three groups of 16, 32 and 64
channels. Some papers use that name for a wider network, as Desai (REFT, 2023) seems to: `width=128` has 4.9 M
parameters. Where the shape changes, the shortcut is a 1×1 convolution with normalisation.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from undergrowth.models.architecture import Architecture
from undergrowth.models.layers import Layers
from undergrowth.models.staged import Staged

MAX_SMALL_IMAGE_SIDE = 64


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with normalisation, added to the shortcut before the last ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int, layers: Layers) -> None:
        super().__init__()
        self.convolution1 = layers.convolution(inputs, outputs, 3, stride)
        self.norm1 = layers.normalisation(outputs)
        self.convolution2 = layers.convolution(outputs, outputs, 3)
        self.norm2 = layers.normalisation(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs or stride != 1:
            self.shortcut = nn.Sequential(layers.convolution(inputs, outputs, 1, stride), layers.normalisation(outputs))

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norm1(self.convolution1(x)))
        return functional.relu(self.norm2(self.convolution2(inner)) + self.shortcut(x))


def stem(channels: int, width: int, layers: Layers, large: bool) -> nn.Sequential:
    """A 3×3 convolution, or for large images a 7×7 convolution and pooling that divide the size by four."""
    if large:
        first = layers.convolution(channels, width, 7, stride=2)
        return nn.Sequential(first, layers.normalisation(width), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))
    return nn.Sequential(layers.convolution(channels, width, 3), layers.normalisation(width), nn.ReLU())


def make(shape: tuple[int, ...], classes: int, layers: Layers, width: int, blocks: tuple[int, ...]) -> Staged:
    """Levels low, mid and up are after the first, second and third group, even if there is a fourth."""
    # resnet-8 was designed for small images and always has the small stem.
    large = len(blocks) == 4 and max(shape[1:]) > MAX_SMALL_IMAGE_SIDE
    stages: dict[str, nn.Module] = {"stem": stem(shape[0], width, layers, large)}
    inputs = width
    for number, count in enumerate(blocks, start=1):
        outputs = width * 2 ** (number - 1)
        first = BasicBlock(inputs, outputs, 1 if number == 1 else 2, layers)
        others = [BasicBlock(outputs, outputs, 1, layers) for _ in range(count - 1)]
        stages[f"group{number}"] = nn.Sequential(first, *others)
        inputs = outputs
    stages["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    stages["head"] = layers.linear(inputs, classes, last=True)
    names = list(stages)
    levels = {"low": names[2], "mid": names[3], "up": names[4], "head": "head"}
    return Staged(stages, levels, published="conv1.weight" if len(blocks) == 4 else None)


def architecture(depth: int, form: str, width: int, blocks: tuple[int, ...], norms: dict[str, int]) -> Architecture:
    return Architecture(
        name=f"resnet-{depth}",
        title=f"ResNet of {depth} layers, {form}",
        source="He et al., Deep Residual Learning for Image Recognition, 2016",
        make=partial(make, blocks=blocks),
        takes="images",
        norms=norms,
        init="torch",
        options={"width": width},
        meanings={"width": "channels of the first group; each later group has twice as many"},
    )


# Each group after the first halves the map, rounded up: 5 pixels (9 with four groups) become two.
RESNET_8 = architecture(8, "CIFAR form (16-32-64)", 16, (1, 1, 1), {"batch": 5, "group": 4})
RESNET_18 = architecture(18, "ImageNet form (64-128-256-512)", 64, (2, 2, 2, 2), {"batch": 9, "group": 8})
RESNET_34 = architecture(34, "ImageNet form (64-128-256-512)", 64, (3, 4, 6, 3), {"batch": 9, "group": 8})
