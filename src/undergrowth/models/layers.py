"""Layers that several models share: normalisation, and layers with their initialisation."""

from __future__ import annotations

from torch import nn

MAX_GROUPS = 32


def normalisation(kind: str, channels: int) -> nn.Module:
    """The normalisation layer of kind `batch`, `group` or `none` for maps with `channels` channels.

    GroupNorm gets the largest number of groups, up to 32, with at least two channels each (one if the number of
    channels is odd). A group of one channel on a map of one pixel would always be normalised to zero.
    """
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "group":
        per_group = 2 if channels % 2 == 0 else 1
        groups = max(count for count in range(1, MAX_GROUPS + 1) if channels % (count * per_group) == 0)
        return nn.GroupNorm(groups, channels)
    return nn.Identity()


def convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = False, groups: int = 1
) -> nn.Conv2d:
    """A convolution that keeps the size of the map (or divides it by `stride`), with He's initialisation.

    torch's default initialisation shrinks the signal in every layer, so that deep models without normalisation do not
    learn.
    """
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=bias, groups=groups)
    # torch counts the outputs of all groups as fan-out. With one channel per group, the fan-in is the right number.
    nn.init.kaiming_normal_(layer.weight, mode="fan_out" if groups == 1 else "fan_in", nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def initialise(layer: nn.Conv2d | nn.Linear, last: bool = False) -> nn.Conv2d | nn.Linear:
    """The layer with He's initialisation, or Glorot's for the last layer, which keep the variance of the signal.

    With torch's default initialisation a model without normalisation loses two thirds of the signal in every layer, and
    a federation with few local steps needs its first rounds to recover it.
    """
    if last:
        nn.init.xavier_uniform_(layer.weight)
    else:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
