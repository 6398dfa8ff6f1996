"""Options of every model that adapt it to data or weights: resized images, a frozen lower part, frozen statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from undergrowth.core import InputError
from undergrowth.core.binding import freeze_buffers
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


@dataclass(frozen=True)
class WithFrozenStatistics:
    """Builds a module with `build` and freezes its running statistics. It is plain data if `build` is."""

    build: Callable[[], nn.Module]

    def __call__(self) -> nn.Module:
        return freeze_statistics(self.build())

    @property
    def without_file(self) -> WithFrozenStatistics:
        """Builds the same module without the weights of a file, for `Model.initial`."""
        return WithFrozenStatistics(getattr(self.build, "without_file", self.build))

    @property
    def ladder(self) -> Mapping[str, Any]:
        """The smaller models that belong to the model, if it is an object that has any."""
        return getattr(self.build, "ladder", {})


def freeze_statistics(module: nn.Module) -> nn.Module:
    """The same module, whose BatchNorm layers normalise by their running statistics in training too.

    Their weights and biases are trained; the statistics stay as they are and are not sent.
    """
    layers = [each for each in module.modules() if isinstance(each, _BatchNorm) and each.running_mean is not None]
    if not layers:
        raise InputError("model.statistics: the model has no BatchNorm layer with running statistics; leave it out")
    for layer in layers:
        freeze_buffers(layer)
    return module
