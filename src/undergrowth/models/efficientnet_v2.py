"""EfficientNetV2-B0, the smallest EfficientNetV2: full convolutions in the first blocks, then inverted residual blocks.

7 139 704 parameters for 1000 classes. Without dropout and stochastic depth, and with torch's BatchNorm, as in
`efficientnet.py`. With `width` below 32, all channels are that many 32nds, and at least 8.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from undergrowth.models.architecture import Architecture
from undergrowth.models.layers import Layers
from undergrowth.models.mobile import MIN_IMAGE_SIDE, STRIDE_HELP, BlockSizes, Design, SqueezeExcitation, build_mobile
from undergrowth.models.staged import Staged

# By groups of blocks with the same map size: whether blocks are fused, blocks, widening factor, stride, outputs.
GROUPS = (
    ((True, 1, 1, 1, 16),),
    ((True, 2, 4, 2, 32),),
    ((True, 2, 4, 2, 48),),
    ((False, 3, 4, 2, 96), (False, 5, 6, 1, 112)),
    ((False, 8, 6, 2, 192),),
)
STEM, LAST, KERNEL = 32, 1280, 3
MIN_CHANNELS = 8


def _groups(width: int) -> list[list[BlockSizes]]:
    groups: list[list[BlockSizes]] = []
    inputs = scale(STEM, width)
    for rows in GROUPS:
        groups.append([])
        for fused, count, factor, stride, published in rows:
            outputs = scale(published, width)
            for first in [stride] + [1] * (count - 1):
                squeezed = 0 if fused else inputs // 4
                groups[-1].append(BlockSizes(KERNEL, factor * inputs, outputs, squeezed, first, nn.SiLU, fused))
                inputs = outputs
    return groups


def scale(channels: int, width: int) -> int:
    """`channels` of the published network in a network whose stem has `width` channels."""
    return max(MIN_CHANNELS, channels * width // STEM)


def make(shape: tuple[int, ...], classes: int, layers: Layers, stride: int, width: int) -> Staged:
    design = Design(
        name="efficientnetv2-b0",
        stem=scale(STEM, width),
        groups=_groups(width),
        last=scale(LAST, width),
        activation=nn.SiLU,
        gate=partial(SqueezeExcitation, activation=nn.SiLU, squash=nn.Sigmoid),
    )
    head = layers.linear(design.last, classes, last=True)
    return build_mobile(design, shape[0], layers, stride, {"head": head})


EFFICIENTNETV2_B0 = Architecture(
    name="efficientnetv2-b0",
    title="EfficientNetV2-B0, which trains faster than EfficientNet-B0",
    source="Tan and Le, EfficientNetV2: Smaller Models and Faster Training, 2021",
    make=make,
    takes="images",
    norms=MIN_IMAGE_SIDE,
    init="he-out",
    options={"stride": 1, "width": STEM},
    meanings={"stride": STRIDE_HELP, "width": "channels of the first convolution; the others are in proportion"},
)
