"""The initial weights of the layers of the zoo, as the option `init` of a model names them.

    init     convolution          hidden linear layer   last linear layer   bias of these layers
    he-out   He normal, fan-out   torch                 torch               0 (convolution), torch (linear)
    he-in    He normal, fan-in    He normal, fan-in     Glorot uniform      0
    lecun    LeCun normal         LeCun normal          LeCun normal        0
    torch    torch                torch                 torch               torch
    by-size  he-in for images of fewer than 16 pixels a side, else torch

He normal is N(0, 2 / fan), LeCun normal N(0, 1 / fan-in). The fan-in of a weight is the number of inputs that one
output is computed from, the fan-out the number of outputs that one input is used for, both within a group of a
convolution. Glorot uniform is U(−a, a) with a² = 6 / (inputs + outputs). "torch" is what the layer has when torch
makes it: U(−a, a) with a² = 1 / fan-in, for weights and biases.

Embeddings and LSTM layers always start as torch makes them, and normalisation layers with scale 1 and shift 0. `he-out`
leaves linear layers to torch, as torchvision's ResNets do: the fan-out of the last layer is the number of classes,
which would make its weights much too large. With torch's weights the signal loses two thirds of its variance in every
layer that no normalisation follows, so that deep models without normalisation do not learn. With `he-in` the signal
grows in every max-pooling, which He's rule does not count, and the first steps of `cnn` overshoot on images of
ordinary size. On very small images, where a federation has few steps to spare, the larger signal learns faster.
"""

from __future__ import annotations

from typing import Literal, TypeVar, get_args

from torch import nn

Init = Literal["he-out", "he-in", "lecun", "torch", "by-size"]
INITS: tuple[Init, ...] = get_args(Init)

SMALL_IMAGE = 16  # pixels a side, for `by-size`

Layer = TypeVar("Layer", nn.Conv2d, nn.Linear)


def init_for(init: Init, shape: tuple[int, ...]) -> Init:
    """The start that `init` stands for, for samples of this shape."""
    if init != "by-size":
        return init
    return "he-in" if len(shape) == 3 and max(shape[1:]) < SMALL_IMAGE else "torch"


def initialise(layer: Layer, init: Init, last: bool = False) -> Layer:
    """The layer, which torch has just made, with the weights of `init`. `last`: it is the last layer of the model."""
    if init == "torch" or (init == "he-out" and isinstance(layer, nn.Linear)):
        return layer
    if init == "lecun":
        nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="linear")
    elif last:
        nn.init.xavier_uniform_(layer.weight)
    elif init == "he-out" and isinstance(layer, nn.Conv2d) and layer.groups == 1:
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    else:  # Depthwise convolutions too: torch counts the outputs of all groups as fan-out; that of one is its fan-in.
        nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
