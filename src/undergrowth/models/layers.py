"""Makes the layers that models of the zoo share, with the normalisation and the initial weights of one model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from undergrowth.core import KeyedDropout
from undergrowth.models.initialisation import Init, initialise

MAX_GROUPS = 32


class SameConvolution(nn.Conv2d):
    """A convolution padded as in TensorFlow: one row and column more at the end than at the start if the sum is odd."""

    def forward(self, x: Tensor) -> Tensor:
        padding: list[int] = []
        for size, kernel, stride in zip(x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            total = max(0, (math.ceil(size / stride) - 1) * stride + kernel - size)
            padding += [total // 2, total - total // 2]
        return super().forward(functional.pad(x, padding))


@dataclass(frozen=True)
class Layers:
    """Makes the layers of one model. `norm` is batch, group or none; `init` says how weights start.

    `same`: convolutions with a stride are padded as in TensorFlow, for weights that were trained there. `epsilon` is
    added to the variance by the normalisation.
    """

    norm: str
    init: Init
    same: bool = False
    epsilon: float = 1e-5

    def normalisation(self, channels: int) -> nn.Module:
        """The normalisation layer for maps with `channels` channels.

        GroupNorm gets the largest number of groups, up to 32, with at least two channels each (one if the number of
        channels is odd). A group of one channel on a map of one pixel would always be normalised to zero.
        """
        if self.norm == "batch":
            return nn.BatchNorm2d(channels, self.epsilon)
        if self.norm == "group":
            per_group = 2 if channels % 2 == 0 else 1
            groups = max(count for count in range(1, MAX_GROUPS + 1) if channels % (count * per_group) == 0)
            return nn.GroupNorm(groups, channels, self.epsilon)
        return nn.Identity()

    def convolution(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = False, groups: int = 1
    ) -> nn.Conv2d:
        """A convolution that keeps the size of the map, or divides it by `stride`."""
        kind, padding = (SameConvolution, 0) if self.same and stride > 1 else (nn.Conv2d, kernel // 2)
        layer = kind(inputs, outputs, kernel, stride=stride, padding=padding, bias=bias, groups=groups)
        return initialise(layer, self.init)

    def dropout(self, p: float) -> nn.Module:
        """Dropout with probability `p`, the same on every engine."""
        return KeyedDropout(p) if p else nn.Identity()

    def linear(self, inputs: int, outputs: int, last: bool = False) -> nn.Linear:
        """A linear layer. `last`: it is the last layer of the model."""
        return initialise(nn.Linear(inputs, outputs), self.init, last)
