"""The parts of networks for phones: inverted residual blocks with depthwise convolutions, squeeze and excitation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from undergrowth.core import InputError
from undergrowth.models.layers import Layers
from undergrowth.models.staged import Staged

# With a first convolution of stride 1, images are halved four times, rounded up: 17 pixels become two.
MIN_IMAGE_SIDE = {"batch": 17, "group": 8}
STRIDE_HELP = "stride of the first convolution: 1 for small images, 2 (as published) for images of 224 pixels"


class BlockSizes(NamedTuple):
    """The sizes of one inverted residual block."""

    kernel: int
    widened: int
    outputs: int
    squeezed: int  # units of squeeze and excitation; 0: the block has none
    stride: int
    activation: type[nn.Module]
    fused: bool = False  # one full convolution in place of widening and depthwise convolution


class SqueezeExcitation(nn.Module):
    """Multiplies every channel by a factor that is computed from the means of all channels."""

    def __init__(
        self, layers: Layers, channels: int, squeezed: int, activation: type[nn.Module], squash: type[nn.Module]
    ) -> None:
        super().__init__()
        self.factors = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            layers.convolution(channels, squeezed, 1, bias=True),
            activation(),
            layers.convolution(squeezed, channels, 1, bias=True),
            squash(),
        )

    def forward(self, x: Tensor) -> Tensor:
        gated: Tensor = x * self.factors(x)
        return gated


# (layers, channels, squeezed units) → squeeze and excitation
Gate = Callable[[Layers, int, int], nn.Module]


class Design(NamedTuple):
    """The design of one network, up to its pooled features."""

    name: str
    stem: int  # channels
    groups: Sequence[Sequence[BlockSizes]]  # the first block of a group may halve the maps
    last: int  # channels of the last convolution, which is 1×1
    activation: type[nn.Module]  # after the first and the last convolution
    gate: Gate | None  # None: no block has squeeze and excitation
    published: str | None = None  # see `Staged`


class InvertedResidual(nn.Module):
    """Widening, depthwise convolution, squeeze and excitation, narrowing; adds the input if the shapes are equal.

    A fused block that does not widen is its full convolution alone.
    """

    def __init__(self, inputs: int, sizes: BlockSizes, layers: Layers, gate: Gate | None) -> None:
        super().__init__()
        kernel, widened, outputs, squeezed, stride, activation, fused = sizes
        block: list[nn.Module] = []
        narrows = not fused or widened != inputs
        if fused:
            first = widened if narrows else outputs
            block += [layers.convolution(inputs, first, kernel, stride), layers.normalisation(first), activation()]
        elif widened != inputs:
            block += [layers.convolution(inputs, widened, 1), layers.normalisation(widened), activation()]
        if not fused:
            block += [layers.convolution(widened, widened, kernel, stride, groups=widened)]
            block += [layers.normalisation(widened), activation()]
        if squeezed and gate is not None:
            block += [gate(layers, widened, squeezed)]
        if narrows:
            block += [layers.convolution(widened, outputs, 1), layers.normalisation(outputs)]
        self.layers = nn.Sequential(*block)
        self.adds_input = inputs == outputs and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.layers(x)
        return x + inner if self.adds_input else inner


def build_mobile(design: Design, channels: int, layers: Layers, stride: int, top: dict[str, nn.Module]) -> Staged:
    """The stages of the design, then those of `top`. Levels low, mid and up are after the last three groups."""
    if stride not in (1, 2):
        raise InputError(f"model {design.name}: option stride must be 1 or 2, not {stride}")
    first = layers.convolution(channels, design.stem, 3, stride)
    stages: dict[str, nn.Module] = {
        "stem": nn.Sequential(first, layers.normalisation(design.stem), design.activation())
    }
    inputs = design.stem
    for number, group in enumerate(design.groups, start=1):
        blocks = []
        for sizes in group:
            blocks.append(InvertedResidual(inputs, sizes, layers, design.gate))
            inputs = sizes.outputs
        stages[f"group{number}"] = nn.Sequential(*blocks)
    last = layers.convolution(inputs, design.last, 1)
    stages["last"] = nn.Sequential(last, layers.normalisation(design.last), design.activation())
    stages["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    count = len(design.groups)
    levels = {"low": f"group{count - 1}", "mid": f"group{count}", "up": "last", "head": "head"}
    return Staged(stages | top, levels, design.published)
