"""Makes the layers that models of the zoo share, with the normalisation and the initial weights of one model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from undergrowth.models.initialisation import Init, initialise

MAX_GROUPS = 32


@dataclass(frozen=True)
class Layers:
    """Makes the layers of one model. `norm` is batch, group or none; `init` says how weights start."""

    norm: str
    init: Init

    def normalisation(self, channels: int) -> nn.Module:
        """The normalisation layer for maps with `channels` channels.

        GroupNorm gets the largest number of groups, up to 32, with at least two channels each (one if the number of
        channels is odd). A group of one channel on a map of one pixel would always be normalised to zero.
        """
        if self.norm == "batch":
            return nn.BatchNorm2d(channels)
        if self.norm == "group":
            per_group = 2 if channels % 2 == 0 else 1
            groups = max(count for count in range(1, MAX_GROUPS + 1) if channels % (count * per_group) == 0)
            return nn.GroupNorm(groups, channels)
        return nn.Identity()

    def convolution(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = False, groups: int = 1
    ) -> nn.Conv2d:
        """A convolution that keeps the size of the map, or divides it by `stride`."""
        layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=bias, groups=groups)
        return initialise(layer, self.init)

    def linear(self, inputs: int, outputs: int, last: bool = False) -> nn.Linear:
        """A linear layer. `last`: it is the last layer of the model."""
        return initialise(nn.Linear(inputs, outputs), self.init, last)
