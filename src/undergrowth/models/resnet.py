"""ResNets of basic blocks: resnet-8 as made for CIFAR, resnet-18 and resnet-34 as made for ImageNet.

resnet-8 is He et al.'s CIFAR form, depth 6n+2 with n=1: one block in each of three groups of 16, 32 and 64
channels. Some works give that name to a wider network, as Desai (REFT, 2023) seems to: `width=128` has 4.9 M
parameters. Wherever the shape changes, the shortcut is a 1×1 convolution with normalisation.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from undergrowth.models.architecture import Architecture
from undergrowth.models.layers import convolution, normalisation
from undergrowth.models.staged import Staged

LARGEST_SMALL_IMAGE = 64


class BasicBlock(nn.Module):
    """Two convolutions of 3×3 with normalisation, added to the shortcut before the last ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.convolution1 = convolution(inputs, outputs, 3, stride)
        self.norm1 = normalisation(norm, outputs)
        self.convolution2 = convolution(outputs, outputs, 3)
        self.norm2 = normalisation(norm, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs or stride != 1:
            self.shortcut = nn.Sequential(convolution(inputs, outputs, 1, stride), normalisation(norm, outputs))

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norm1(self.convolution1(x)))
        return functional.relu(self.norm2(self.convolution2(inner)) + self.shortcut(x))


def stem(channels: int, width: int, norm: str, large: bool) -> nn.Sequential:
    """3×3 for small images; 7×7 with stride and pooling, which divides the size by four, for large ones."""
    if large:
        first = convolution(channels, width, 7, stride=2)
        return nn.Sequential(first, normalisation(norm, width), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))
    return nn.Sequential(convolution(channels, width, 3), normalisation(norm, width), nn.ReLU())


def make(shape: tuple[int, ...], classes: int, norm: str, width: int, blocks: tuple[int, ...]) -> Staged:
    """Levels low, mid and up lie after the first, second and third group, also where there are four."""
    # resnet-8 was made for small images only and keeps its small stem.
    large = len(blocks) == 4 and max(shape[1:]) > LARGEST_SMALL_IMAGE
    stages: dict[str, nn.Module] = {"stem": stem(shape[0], width, norm, large)}
    inputs = width
    for number, count in enumerate(blocks, start=1):
        outputs = width * 2 ** (number - 1)
        first = BasicBlock(inputs, outputs, 1 if number == 1 else 2, norm)
        others = [BasicBlock(outputs, outputs, 1, norm) for _ in range(count - 1)]
        stages[f"group{number}"] = nn.Sequential(first, *others)
        inputs = outputs
    stages["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    stages["head"] = nn.Linear(inputs, classes)
    names = list(stages)
    return Staged(stages, {"low": names[2], "mid": names[3], "up": names[4], "head": "head"})


def architecture(depth: int, form: str, width: int, blocks: tuple[int, ...], norms: dict[str, int]) -> Architecture:
    return Architecture(
        name=f"resnet-{depth}",
        title=f"ResNet of {depth} layers, {form}",
        source="He et al., Deep Residual Learning for Image Recognition, 2016",
        make=partial(make, blocks=blocks),
        takes="images",
        norms=norms,
        shape=(3, 32, 32),
        classes=10,
        options={"width": width},
        meanings={"width": "channels of the first group; each later group has twice as many"},
    )


# Each group after the first halves the map, rounded up: 5 pixels (9 with four groups) leave two.
RESNET_8 = architecture(8, "CIFAR form (16-32-64)", 16, (1, 1, 1), {"batch": 5, "group": 4})
RESNET_18 = architecture(18, "ImageNet form (64-128-256-512)", 64, (2, 2, 2, 2), {"batch": 9, "group": 8})
RESNET_34 = architecture(34, "ImageNet form (64-128-256-512)", 64, (3, 4, 6, 3), {"batch": 9, "group": 8})
