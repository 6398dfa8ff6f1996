"""Which layers a GPU computes with the package's own kernels."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor


def gpu_layers(x: Tensor) -> ModuleType | None:
    """The package of layers with Triton kernels if they apply to `x`: on a GPU, and not in double precision."""
    return kernels() if x.is_cuda and x.dtype != torch.float64 else None


@cache
def kernels() -> ModuleType | None:
    """None if Triton is not installed."""
    try:
        return import_module("undergrowth.engines.vector.gpu")
    except ImportError:
        return None
