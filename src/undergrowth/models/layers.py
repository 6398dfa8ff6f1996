"""The choices that models share: how to normalise, and with which values layers start."""

from __future__ import annotations

from torch import nn

MOST_GROUPS = 32


def normalisation(kind: str, channels: int) -> nn.Module:
    """`batch`, `group` or `none`, for maps with so many channels.

    GroupNorm takes the most groups, up to 32, that divide the channels and leave two of them in each (one,
    where the channels are odd): a group of one channel on a map of one pixel would always come out as zero.
    """
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "group":
        per_group = 2 if channels % 2 == 0 else 1
        groups = max(count for count in range(1, MOST_GROUPS + 1) if channels % (count * per_group) == 0)
        return nn.GroupNorm(groups, channels)
    return nn.Identity()


def convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = False, groups: int = 1
) -> nn.Conv2d:
    """A convolution that keeps the size (or divides it by the stride), with He's initialisation.

    Torch's own initialisation shrinks the signal in every layer, which deep models without normalisation do
    not survive.
    """
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=bias, groups=groups)
    # Torch counts the outputs of all groups; with one channel a group the inputs are as many as the outputs of one.
    nn.init.kaiming_normal_(layer.weight, mode="fan_out" if groups == 1 else "fan_in", nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def started(layer: nn.Conv2d | nn.Linear, last: bool = False) -> nn.Conv2d | nn.Linear:
    """A layer that passes the signal on at full strength: He's initialisation, Glorot's for the last one.

    Without normalisation torch's own start loses two thirds of the signal in every layer, and a federation
    with few local steps spends its first rounds on finding it again.
    """
    if last:
        nn.init.xavier_uniform_(layer.weight)
    else:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
