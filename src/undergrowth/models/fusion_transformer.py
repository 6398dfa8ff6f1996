"""A vision transformer for images of several sensors side by side (fusion vision transformer, Koupai et al. 2022).

An image is cut into square patches. All patches share one linear layer, and their positions are fixed, not learned:
half of the channels are sines and cosines of the row, the other half of the column. So the number of parameters depends
neither on the size of the image nor on how many images are fused into it. Encoder layers and the mean over all patches
are those of the text transformer.

Departure: Koupai et al. read the class from a token of its own; here it is read from the mean over patches.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from undergrowth.core import InputError
from undergrowth.models.architecture import Architecture
from undergrowth.models.layers import Layers
from undergrowth.models.staged import Staged
from undergrowth.models.transformer import encoder

LONGEST = 1000.0  # wavelength of the slowest sine, in patches, divided by 2π


class PatchEmbedding(nn.Module):
    """The vector of each patch plus that of its position, and a last channel of ones: all patches are words."""

    def __init__(self, channels: int, width: int, patch: int, layers: Layers) -> None:
        super().__init__()
        self.patch = patch
        self.project = layers.linear(channels * patch * patch, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = (side // self.patch for side in x.shape[2:])
        pieces = x.unflatten(3, (columns, self.patch)).unflatten(2, (rows, self.patch))
        pieces = pieces.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        vectors = self.project(pieces)
        vectors = vectors + patch_positions(rows, columns, vectors.shape[2], vectors)
        return torch.cat([vectors, torch.ones_like(vectors[:, :, :1])], 2)


def patch_positions(rows: int, columns: int, width: int, like: Tensor) -> Tensor:
    """Vectors of length `width` for the patches of an image, row by row, of the type and device of `like`."""
    quarter = width // 4
    steps = torch.arange(quarter, dtype=like.dtype, device=like.device) / quarter
    rates = torch.exp(-math.log(LONGEST) * steps)
    of_row, of_column = (
        torch.cat([angles.sin(), angles.cos()], 1)
        for count in (rows, columns)
        for angles in [torch.arange(count, dtype=like.dtype, device=like.device)[:, None] * rates]
    )
    both = of_row[:, None].expand(-1, columns, -1), of_column[None].expand(rows, -1, -1)
    return torch.cat(both, 2).flatten(0, 1)


def make(
    shape: tuple[int, ...], classes: int, layers: Layers, patch: int, width: int, depth: int, heads: int
) -> Staged:
    if any(side % patch for side in shape[1:]):
        raise InputError(
            f"model fusion-transformer: option patch {patch} must divide height and width of the images, "
            f"which are {shape[1]}×{shape[2]}"
        )
    if width % 4 or width % heads:
        raise InputError(
            f"model fusion-transformer: option width must be a multiple of 4 and of heads {heads}, not {width}"
        )
    return encoder(PatchEmbedding(shape[0], width, patch, layers), classes, layers, width, depth, heads)


FUSION_TRANSFORMER = Architecture(
    name="fusion-transformer",
    title="A vision transformer whose size does not depend on the number of fused images",
    source="Koupai et al., Self-supervised multimodal fusion transformer for passive activity recognition, 2022",
    make=make,
    takes="images",
    norms={"none": 1},
    init="torch",
    options={"patch": 4, "width": 128, "depth": 4, "heads": 4},
    meanings={
        "patch": "pixels per side of a patch; it must divide both sides of the images",
        "width": "channels of each patch, a multiple of 4",
        "depth": "encoder layers",
        "heads": "parts of the channels that attend separately",
    },
)
