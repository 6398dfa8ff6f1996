"""Options of every model that adapt it to data or weights: images resized at its input, a frozen lower part."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from undergrowth.models.staged import Staged


class Resize(nn.Module):
    """Images of `side` × `side` pixels, by bilinear interpolation.

    A stage of the model, so that data stays small in memory and on devices: only the batch at hand is large.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        return functional.interpolate(x, size=(self.side, self.side), mode="bilinear", align_corners=False)

    def extra_repr(self) -> str:
        return str(self.side)


def add_resize(module: Staged, side: int) -> Staged:
    """The model with the stage `resize` before all others."""
    return Staged({"resize": Resize(side), **dict(module.named_children())}, module.levels, module.published)


def freeze_below(module: Staged, level: str) -> Staged:
    """The same model; the part below `level` is not trained, averaged or sent, and runs in evaluation mode."""
    for stage in list(module.children())[: module.position(level)]:
        stage.requires_grad_(False)
    return module
