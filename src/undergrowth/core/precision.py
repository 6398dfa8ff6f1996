"""The precision of training passes: bfloat16 where autocast allows it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from undergrowth.core.pytree import map_tensors

# Functions of a forward pass that autocast computes in bfloat16, on a CPU and on a GPU.
_SHORT = frozenset(
    {
        F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
        F.scaled_dot_product_attention, torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.addbmm, torch.baddbmm,
        Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, Tensor.mm, Tensor.bmm, Tensor.addmm, Tensor.baddbmm,
        torch.lstm, torch.gru,
    }
)  # fmt: skip


def bfloat16_on(device_type: str) -> AbstractContextManager[Any]:
    """Forward passes in the block compute in bfloat16 where that is safe. Weights keep their type."""
    if device_type == "meta":
        return _OnMeta()
    # Without the cache of converted weights, which a recorded step would keep for ever.
    return torch.autocast(device_type, torch.bfloat16, cache_enabled=False)


class _OnMeta(TorchFunctionMode):
    """Autocast for meta tensors, which torch's refuses. Without it, prices would be counted on real values."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _SHORT:
            args, kwargs = map_tensors(_shorten, args), map_tensors(_shorten, kwargs)
        return function(*args, **kwargs)


def _shorten(value: Tensor) -> Tensor:
    return value.bfloat16() if value.dtype == torch.float32 else value
