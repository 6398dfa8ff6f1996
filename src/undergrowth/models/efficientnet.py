"""EfficientNet-B0: sixteen inverted residual blocks, all of them gated.

5 288 548 parameters for 1000 classes, 4 020 358 for ten (4.0 M in Shi, Sheffield thesis, table 4.9). There is no
dropout and no stochastic depth: they would draw from a random state that engines do not share. BatchNorm keeps torch's
momentum of 0.1: with the authors' 0.01 the statistics need more steps than a device takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby

from torch import nn

from undergrowth.models.architecture import Architecture
from undergrowth.models.mobile import SMALLEST, STRIDE, Design, Gate, Inverted, mobile_network
from undergrowth.models.staged import Staged

# Table 1 of the paper: group of blocks between two halvings, blocks, widening factor, kernel, stride, outputs.
ROWS = (
    (1, 1, 1, 3, 1, 16),
    (2, 2, 6, 3, 2, 24),
    (3, 2, 6, 5, 2, 40),
    (4, 3, 6, 3, 2, 80),
    (4, 3, 6, 5, 1, 112),
    (5, 4, 6, 5, 2, 192),
    (5, 1, 6, 3, 1, 320),
)
STEM = 32


def _blocks() -> Iterator[tuple[int, Inverted]]:
    inputs = STEM
    for group, count, factor, kernel, stride, outputs in ROWS:
        for place in range(count):
            # The gate's units are a quarter of the block's inputs, not of the widened channels.
            yield group, Inverted(kernel, factor * inputs, outputs, inputs // 4, 1 if place else stride, nn.SiLU)
            inputs = outputs


B0 = Design(
    name="efficientnet-b0",
    stem=STEM,
    groups=tuple(tuple(sizes for _, sizes in rows) for _, rows in groupby(_blocks(), key=lambda row: row[0])),
    last=1280,
    activation=nn.SiLU,
    gate=partial(Gate, activation=nn.SiLU, squash=nn.Sigmoid),
)


def make(shape: tuple[int, ...], classes: int, norm: str, stride: int) -> Staged:
    return mobile_network(B0, shape[0], norm, stride, {"head": nn.Linear(B0.last, classes)})


EFFICIENTNET_B0 = Architecture(
    name=B0.name,
    title="EfficientNet-B0, found by a search for accuracy at a low price",
    source="Tan and Le, EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks, 2019",
    make=make,
    takes="images",
    norms=SMALLEST,
    shape=(3, 32, 32),
    classes=10,
    options={"stride": 1},
    meanings={"stride": STRIDE},
)
