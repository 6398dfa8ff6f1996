"""Wide ResNets: three groups of pre-activation blocks, depth 6n+4 and widening factor K.

With `dropout`, as in the paper, values between the two convolutions of a block are dropped.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from undergrowth.core import InputError
from undergrowth.models.architecture import Architecture
from undergrowth.models.layers import Layers
from undergrowth.models.staged import Staged

MAX_DEPTH = 1000


class PreActivationBlock(nn.Module):
    """Twice normalisation, ReLU and convolution. If the shape changes, the shortcut convolves the activated input."""

    def __init__(self, inputs: int, outputs: int, stride: int, layers: Layers, dropout: float) -> None:
        super().__init__()
        self.norm1 = layers.normalisation(inputs)
        self.convolution1 = layers.convolution(inputs, outputs, 3, stride)
        self.dropout = layers.dropout(dropout)
        self.norm2 = layers.normalisation(outputs)
        self.convolution2 = layers.convolution(outputs, outputs, 3)
        same_shape = inputs == outputs and stride == 1
        self.shortcut = None if same_shape else layers.convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        activated = functional.relu(self.norm1(x))
        carried = x if self.shortcut is None else self.shortcut(activated)
        inner = functional.relu(self.norm2(self.dropout(self.convolution1(activated))))
        outputs: Tensor = carried + self.convolution2(inner)
        return outputs


def make(shape: tuple[int, ...], classes: int, layers: Layers, depth: int, width: int, dropout: float) -> Staged:
    """Levels low, mid and up are after the first, second and third group."""
    blocks, rest = divmod(depth - 4, 6)
    if rest or blocks < 1:
        below = 6 * max(blocks, 1) + 4
        raise InputError(
            f"model wrn-{depth}-{width}: the depth of a Wide ResNet must be 6n+4 and at least 10, "
            f"not {depth}; did you mean wrn-{below}-{width} or wrn-{below + 6}-{width}?"
        )
    if depth > MAX_DEPTH:
        raise InputError(f"model wrn-{depth}-{width}: the depth of a Wide ResNet must be at most {MAX_DEPTH}")
    stages: dict[str, nn.Module] = {"stem": layers.convolution(shape[0], 16, 3)}
    inputs = 16
    for number, outputs in enumerate((16 * width, 32 * width, 64 * width), start=1):
        first = PreActivationBlock(inputs, outputs, 1 if number == 1 else 2, layers, dropout)
        others = [PreActivationBlock(outputs, outputs, 1, layers, dropout) for _ in range(blocks - 1)]
        stages[f"group{number}"] = nn.Sequential(first, *others)
        inputs = outputs
    stages["pool"] = nn.Sequential(layers.normalisation(inputs), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    stages["head"] = layers.linear(inputs, classes, last=True)
    return Staged(stages, {"low": "group2", "mid": "group3", "up": "pool", "head": "head"})


WRN = Architecture(
    name="wrn-D-K",
    title="Wide ResNet of depth D = 6n+4 and widening factor K",
    source="Zagoruyko and Komodakis, Wide Residual Networks, 2016",
    make=make,
    takes="images",
    # Two halvings, rounded up: five pixels become two.
    norms={"batch": 5, "group": 4},
    init="torch",
    options={"dropout": 0.0},
    meanings={"dropout": "probability that a value between the convolutions of a block is dropped in training"},
    numbers={"depth": 16, "width": 1},
)
