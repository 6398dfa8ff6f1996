"""MobileNetV3-Small: eleven inverted residual blocks, most of them gated, and one hidden layer.

2 542 856 parameters for 1000 classes, 1 528 106 for ten (table 4.9 of Shi, Sheffield thesis, says 1.7 M). There is no
dropout: it would draw from a random state that engines do not share. BatchNorm keeps torch's momentum of 0.1: with
the authors' 0.01 the statistics need more steps than a device takes.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from undergrowth.models.architecture import Architecture
from undergrowth.models.mobile import SMALLEST, STRIDE, Design, Gate, Inverted, mobile_network
from undergrowth.models.staged import Staged

HIDDEN = 1024
# Table 2 of the paper: kernel, widened, outputs, units of the gate (a quarter, rounded to a multiple of 8), stride.
SMALL = Design(
    name="mobilenetv3-small",
    stem=16,
    groups=(
        (Inverted(3, 16, 16, 8, 2, nn.ReLU),),
        (Inverted(3, 72, 24, 0, 2, nn.ReLU), Inverted(3, 88, 24, 0, 1, nn.ReLU)),
        (
            Inverted(5, 96, 40, 24, 2, nn.Hardswish),
            Inverted(5, 240, 40, 64, 1, nn.Hardswish),
            Inverted(5, 240, 40, 64, 1, nn.Hardswish),
            Inverted(5, 120, 48, 32, 1, nn.Hardswish),
            Inverted(5, 144, 48, 40, 1, nn.Hardswish),
        ),
        (
            Inverted(5, 288, 96, 72, 2, nn.Hardswish),
            Inverted(5, 576, 96, 144, 1, nn.Hardswish),
            Inverted(5, 576, 96, 144, 1, nn.Hardswish),
        ),
    ),
    last=576,
    activation=nn.Hardswish,
    gate=partial(Gate, activation=nn.ReLU, squash=nn.Hardsigmoid),
)


def make(shape: tuple[int, ...], classes: int, norm: str, stride: int) -> Staged:
    top: dict[str, nn.Module] = {
        "hidden": nn.Sequential(nn.Linear(SMALL.last, HIDDEN), nn.Hardswish()),
        "head": nn.Linear(HIDDEN, classes),
    }
    return mobile_network(SMALL, shape[0], norm, stride, top)


MOBILENETV3_SMALL = Architecture(
    name=SMALL.name,
    title="MobileNetV3-Small, for phones",
    source="Howard et al., Searching for MobileNetV3, 2019",
    make=make,
    takes="images",
    norms=SMALLEST,
    shape=(3, 32, 32),
    classes=10,
    options={"stride": 1},
    meanings={"stride": STRIDE},
)
