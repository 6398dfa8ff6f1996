"""MobileNetV3-Small: eleven inverted residual blocks, most with squeeze and excitation, and one hidden layer.

2 542 856 parameters for 1000 classes, 1 528 106 for ten (table 4.9 of Shi, Sheffield thesis, says 1.7 M). It has no
dropout. BatchNorm has torch's default momentum of 0.1: with 0.01, as in the paper, the statistics need more steps than
a device trains.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from undergrowth.models.architecture import Architecture
from undergrowth.models.layers import Layers
from undergrowth.models.mobile import MIN_IMAGE_SIDE, STRIDE_HELP, BlockSizes, Design, SqueezeExcitation, build_mobile
from undergrowth.models.staged import Staged

HIDDEN = 1024
# Table 2 of the paper: kernel, widened, outputs, squeezed units (a quarter, rounded to a multiple of 8), stride.
SMALL = Design(
    name="mobilenetv3-small",
    stem=16,
    groups=(
        (BlockSizes(3, 16, 16, 8, 2, nn.ReLU),),
        (BlockSizes(3, 72, 24, 0, 2, nn.ReLU), BlockSizes(3, 88, 24, 0, 1, nn.ReLU)),
        (
            BlockSizes(5, 96, 40, 24, 2, nn.Hardswish),
            BlockSizes(5, 240, 40, 64, 1, nn.Hardswish),
            BlockSizes(5, 240, 40, 64, 1, nn.Hardswish),
            BlockSizes(5, 120, 48, 32, 1, nn.Hardswish),
            BlockSizes(5, 144, 48, 40, 1, nn.Hardswish),
        ),
        (
            BlockSizes(5, 288, 96, 72, 2, nn.Hardswish),
            BlockSizes(5, 576, 96, 144, 1, nn.Hardswish),
            BlockSizes(5, 576, 96, 144, 1, nn.Hardswish),
        ),
    ),
    last=576,
    activation=nn.Hardswish,
    gate=partial(SqueezeExcitation, activation=nn.ReLU, squash=nn.Hardsigmoid),
)


def make(shape: tuple[int, ...], classes: int, layers: Layers, stride: int) -> Staged:
    top: dict[str, nn.Module] = {
        "hidden": nn.Sequential(layers.linear(SMALL.last, HIDDEN), nn.Hardswish()),
        "head": layers.linear(HIDDEN, classes, last=True),
    }
    return build_mobile(SMALL, shape[0], layers, stride, top)


MOBILENETV3_SMALL = Architecture(
    name=SMALL.name,
    title="MobileNetV3-Small, for phones",
    source="Howard et al., Searching for MobileNetV3, 2019",
    make=make,
    takes="images",
    norms=MIN_IMAGE_SIDE,
    init="he-out",
    options={"stride": 1},
    meanings={"stride": STRIDE_HELP},
)
