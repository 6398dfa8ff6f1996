"""Augmentation of images: random crop, horizontal flip and cutout, written ``crop+flip+cutout:16``.

The order is that of FedML's CIFAR loader: crop, flip, normalise, cut out. Shards hold normalised images, so a crop is
padded with the value of a black pixel after normalisation, and cutout writes 0, the mean of a channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from undergrowth.core import Augmentation, InputError
from undergrowth.core.notation import Form, Number, parse

NONE = "none"
AUGMENTATIONS = {
    NONE: Form(),
    "crop": Form(),
    "flip": Form(),
    "cutout": Form((Number("N", at_least=1, at_most=1e4, whole=True),), "cutout:16"),
}
TOP, LEFT, FLIP, ROW, COLUMN = range(5)  # columns of the random choices
SIDE_PER_PADDING = 8  # a crop pads 4 pixels at 32: an eighth of the side


@dataclass(frozen=True, eq=False)
class ImageAugmentation(Augmentation):
    """Crop, flip and cutout of images of `shape`, channels × height × width.

    crop: the image is padded on each side by an eighth of that side, rounded, and at least by 1 pixel; a random window
        of the original size is kept.
    flip: left and right are exchanged with probability 1/2.
    cutout: side of a square that is set to 0; its centre is a random pixel, and the border clips it (DeVries and Taylor
        2017). Its rows are centre − N // 2 to centre − N // 2 + N − 1.
    """

    shape: tuple[int, ...]
    black: Tensor  # value of a black pixel, channels × 1 × 1
    crop: bool = False
    flip: bool = False
    cutout: int = 0

    @property
    def padding(self) -> tuple[int, int]:
        """Rows and columns that a crop adds on each side."""
        height, width = (max(1, (side + SIDE_PER_PADDING // 2) // SIDE_PER_PADDING) for side in self.shape[1:])
        return (height, width) if self.crop else (0, 0)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        rows, columns = self.padding
        _, height, width = self.shape
        limits = {
            **({TOP: 2 * rows + 1, LEFT: 2 * columns + 1} if self.crop else {}),
            **({FLIP: 2} if self.flip else {}),
            **({ROW: height, COLUMN: width} if self.cutout else {}),
        }
        draws = self.keep(count)
        for column, limit in limits.items():
            draws[:, column] = torch.randint(limit, (count,), generator=generator)
        return draws

    def keep(self, count: int) -> Tensor:
        # A square centred N pixels outside of the image does not reach it.
        same = torch.tensor([*self.padding, 0, -self.cutout, -self.cutout], dtype=torch.int16)
        return same.repeat(count, 1)

    def apply(self, x: Tensor, draws: Tensor) -> Tensor:
        choices = draws.long()
        if self.crop or self.flip:
            x = self._move(x, choices)
        return x.masked_fill(self._square(x, choices), 0) if self.cutout else x

    def to(self, torch_device: str) -> ImageAugmentation:
        return replace(self, black=self.black.to(torch_device))

    def _move(self, x: Tensor, choices: Tensor) -> Tensor:
        """Crop and flip as one gather: where each pixel comes from, and black where that is outside of the image."""
        height, width = x.shape[2:]
        above, before = self.padding
        across = torch.arange(width, device=x.device)
        across = torch.where(choices[:, FLIP, None] > 0, width - 1 - across, across)
        rows = torch.arange(height, device=x.device) + choices[:, TOP, None] - above  # samples × height
        columns = across + choices[:, LEFT, None] - before  # samples × width
        pixels = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
        moved = x.flatten(2).gather(2, pixels.flatten(1)[:, None].expand(-1, x.shape[1], -1)).view_as(x)
        if not self.crop:
            return moved
        inside = ((rows >= 0) & (rows < height))[:, None, :, None] & ((columns >= 0) & (columns < width))[:, None, None]
        return torch.where(inside, moved, self.black.to(x.dtype))

    def _square(self, x: Tensor, choices: Tensor) -> Tensor:
        """Whether a pixel is cut out, samples × 1 × height × width."""

        def covers(side: int, centre: Tensor) -> Tensor:
            distance = torch.arange(side, device=x.device) - centre[:, None] + self.cutout // 2
            return (distance >= 0) & (distance < self.cutout)

        height, width = x.shape[2:]
        return covers(height, choices[:, ROW])[:, None, :, None] & covers(width, choices[:, COLUMN])[:, None, None]


def build_augmentation(text: str, shape: Sequence[int], black: Sequence[float] | None) -> ImageAugmentation | None:
    """The augmentation that `data.augment` names: none, or crop, flip and cutout:N, joined by +.

    black: the value of a black pixel in each channel; None: 0.
    """
    parts = [parse("data.augment", part, AUGMENTATIONS) for part in text.split("+")]
    names = [name for name, _ in parts]
    if names == [NONE]:
        return None
    if NONE in names or len(set(names)) < len(names):
        raise InputError(f"data.augment '{text}' must name each of crop, flip and cutout:N at most once, joined by +")
    if len(shape) != 3:
        raise InputError(
            f"data.augment '{text}': one input has shape {tuple(shape)}; only images, channels × height × width, "
            "can be augmented; write none"
        )
    cutout = next((int(numbers[0]) for name, numbers in parts if name == "cutout"), 0)
    if cutout > min(shape[1:]):
        raise InputError(
            f"data.augment '{text}': the square has {cutout} pixels a side and an image {shape[1]}×{shape[2]}; "
            f"write cutout:{max(1, min(shape[1:]) // 2)}"
        )
    values = torch.tensor(black or (0.0,) * shape[0]).view(-1, 1, 1)
    return ImageAugmentation(tuple(shape), values, "crop" in names, "flip" in names, cutout)
