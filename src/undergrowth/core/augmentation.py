"""Augmentation: random changes of the inputs that a device trains on, made anew in every epoch."""

from __future__ import annotations

import torch
from torch import Tensor


class Augmentation:
    """`draw` makes all random choices in advance; `apply` is a pure function of the inputs and the choices.

    So every engine applies the same choices, also to the samples of many clients at once.
    """

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """One row of random choices for each of `count` samples, on the CPU."""
        raise NotImplementedError("an augmentation defines draw")

    def keep(self, count: int) -> Tensor:
        """`count` rows of choices that leave a sample as it is."""
        raise NotImplementedError("an augmentation defines keep")

    def apply(self, x: Tensor, draws: Tensor) -> Tensor:
        """The inputs `x`, each changed by its row of `draws`. Must not make the CPU wait for a GPU."""
        raise NotImplementedError("an augmentation defines apply")

    def to(self, torch_device: str) -> Augmentation:
        """The same augmentation with its tensors on `torch_device`."""
        return self
