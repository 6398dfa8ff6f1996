"""Descent: plain SGD steps of large linear layers, done inside the backward pass.

The gradient of such a layer's weights is a product of two thin matrices. Adding the product to the weights directly
avoids writing the gradient to memory and reading it back, which takes longer than the arithmetic of a large layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

from undergrowth.core import tensors_in

LARGE = 1 << 19  # fewest values of a weight; smaller ones are still in the cache when their gradient is ready


class Descent:
    """Steps of −lr · gradient in the backward pass.

    The first step (`names` is None) finds out which weights qualify. Later steps get their names and update these
    weights in place.
    """

    def __init__(self, lr: float, names: frozenset[str] | None) -> None:
        self.lr = lr
        self.done = names or frozenset()
        self.found = self.done
        self._first = names is None

    @contextmanager
    def over(self, trained: Mapping[str, Tensor]) -> Iterator[None]:
        """Run the forward pass and the loss in this block."""
        large = (
            {name for name, value in trained.items() if value.numel() >= LARGE and not value.is_meta}
            if self._first
            else set()
        )
        if large:
            with _LayerSearch(trained) as search:
                yield
            self.found = frozenset(large & search.found)
        elif self.done:
            with _DescendingLayers({id(trained[name]) for name in self.done}, self.lr):
                yield
        else:
            yield


class _LayerSearch(TorchFunctionMode):
    """Finds weights that are used exactly once, by a linear layer with a bias."""

    def __init__(self, trained: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = {id(value): name for name, value in trained.items()}
        self._layers: Counter[str] = Counter()
        self._elsewhere: set[str] = set()

    @property
    def found(self) -> set[str]:
        return {name for name, times in self._layers.items() if times == 1} - self._elsewhere

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        used = [self._names[id(value)] for value in tensors_in((args, kwargs)) if id(value) in self._names]
        # Without a trained bias, autograd might not visit the layer at all.
        if function is F.linear and len(args) == 3 and len(used) == 2 and id(args[0]) not in self._names:
            self._layers[used[0]] += 1
        else:
            self._elsewhere.update(used)
        return function(*args, **(kwargs or {}))


class _DescendingLayers(TorchFunctionMode):
    def __init__(self, weights: set[int], lr: float) -> None:
        super().__init__()
        self._weights = weights
        self._lr = lr

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not F.linear or len(args) != 3 or id(args[1]) not in self._weights:
            return function(*args, **(kwargs or {}))
        x, weight, bias = args
        return descend(x, weight, bias, self._lr)


def descend(x: Tensor, weight: Tensor, bias: Tensor, lr: float) -> Tensor:
    """A linear layer whose weights take their step in the backward pass.

    An engine may override it for many clients at once, like torch's own layers.
    """
    if has_torch_function((x, weight, bias)):
        taken: Tensor = handle_torch_function(descend, (x, weight, bias), x, weight, bias, lr)
        return taken
    out: Tensor = _Linear.apply(x, weight, bias, lr)
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, lr: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.lr = lr
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        to_x = gradient @ weight if ctx.needs_input_grad[0] else None
        rows = gradient.reshape(-1, gradient.shape[-1])
        weight.detach().addmm_(rows.t(), x.reshape(-1, x.shape[-1]), alpha=-ctx.lr)
        return to_x, None, rows.sum(0), None
