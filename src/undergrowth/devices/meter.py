"""Meter: counts FLOPs and the peak of live bytes while code runs, on meta tensors or on real ones.

A meta tensor has a shape and a type but no values. Code that runs on meta tensors needs no arithmetic and no memory,
and still calls every operation that it would call on a device. torch's FakeTensorMode builds on meta tensors as well.
The meter does not use it, for two reasons. The meter caches the output shapes of each operation, which makes tracing a
step of a Wide ResNet ten times faster. And it lets meta tensors and real tensors meet in one operation, so that labels
can be real if a client reads them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from undergrowth.core import map_leaves, map_tensors, tensors_in
from undergrowth.core.pytree import signature
from undergrowth.devices.output_shapes import infer_outputs

_READ = torch.ops.aten._local_scalar_dense.default  # called by `item`, `float`, `bool` and `if`
_COPY = torch.ops.aten._to_copy.default
_CONVOLUTION_BACKWARD, _GROUPS = torch.ops.aten.convolution_backward, 9  # the place of `groups` among its arguments


# Operation and shapes of its inputs → meta tensors like its outputs, and its FLOPs. All meters share this cache,
# because most methods call the same operations. It is cleared when it is full, after a search over many models.
_CACHE: dict[Hashable, tuple[Any, int]] = {}
_MAX_CACHED_OPERATIONS = 200_000


class Meter(TorchDispatchMode):
    """Counts while it is entered. `flops` follows torch's formulas: matrix products and convolutions.

    guess: if True, reading a number from a meta tensor gives 1; if False, it raises an error.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its compiler at the first operation, which takes a second

    def __init__(self, guess: bool = False) -> None:
        super().__init__()
        self.guess = guess
        self.flops = 0
        self.calls = 0  # operations
        self.live = 0
        self.peak = 0
        self._storages: dict[int, tuple[int, object]] = {}

    def hold(self, pytree: Any) -> None:
        """Counts tensors that exist before the code runs, such as weights and the state of the device."""
        for tensor in tensors_in(pytree):
            self._track(tensor, tensor.untyped_storage().nbytes())

    def ignore(self, *tensors: Tensor) -> None:
        """Does not count these tensors and their views."""
        for tensor in tensors:
            self._track(tensor, 0)

    def release(self, *tensors: Tensor) -> None:
        """Subtracts these tensors from the live bytes and from the peak."""
        for tensor in tensors:
            key = tensor.untyped_storage()._cdata
            if key in self._storages:
                size, reference = self._storages[key]
                self._storages[key] = (0, reference)
                self.live, self.peak = self.live - size, self.peak - size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_meta(args, kwargs):
            if func is _READ and self.guess:
                return 1.0 if args[0].is_floating_point() else args[0].dtype is torch.bool or 1
            if func is _COPY:
                kwargs = {**kwargs, "device": torch.device("meta")}  # a meta tensor has no values to move
            args, kwargs = map_leaves(_to_meta, args), map_leaves(_to_meta, kwargs)
            outputs, flops = _run_on_meta(func, args, kwargs)
        else:
            outputs = func(*args, **kwargs)
            flops = _count_flops(func, args, kwargs, outputs)
        self.flops += flops
        self.calls += 1
        for tensor in tensors_in(outputs):
            self._track(tensor)
        return outputs

    def _track(self, tensor: Tensor, size: int | None = None) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._storages:
            size = storage.nbytes() if size is None else size
            # The callback runs when the last tensor on the storage is gone, including those saved for backward.
            self._storages[key] = (size, weakref.ref(storage, lambda _: self._forget(key)))
            self.live += size
            self.peak = max(self.peak, self.live)

    def _forget(self, key: int) -> None:
        self.live -= self._storages.pop(key)[0]


def _is_meta(args: Any, kwargs: Any) -> bool:
    if kwargs.get("device") is not None and kwargs["device"].type == "meta":
        return True
    return any(tensor.is_meta for tensor in tensors_in((args, kwargs)))


def _to_meta(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        # Scalars stay real: operations accept them from any torch device, and they take part in type promotion.
        return leaf if leaf.is_meta or leaf.ndim == 0 else leaf.to("meta")
    return None if isinstance(leaf, torch.Generator) else leaf  # a generator works on one torch device only


def _run_on_meta(func: Any, args: Any, kwargs: Any) -> tuple[Any, int]:
    """The outputs of an operation on meta tensors, and its FLOPs; from the cache if possible."""
    key = (func, signature(args, _describe), signature(kwargs, _describe))
    cached = _CACHE.get(key) if _is_pure(func) else None
    if cached is not None:
        return map_tensors(_empty_like, cached[0]), cached[1]
    outputs = infer_outputs(func, args, kwargs)
    if outputs is NotImplemented:
        outputs = func(*args, **kwargs)
    flops = _count_flops(func, args, kwargs, outputs)
    if _is_pure(func) and _all_new(outputs, args):
        if len(_CACHE) >= _MAX_CACHED_OPERATIONS:
            _CACHE.clear()
        _CACHE[key] = (map_tensors(_empty_like, outputs), flops)
    return outputs, flops


@cache
def _is_pure(func: Any) -> bool:
    """Whether an operation, by its signature, neither changes its inputs nor returns views of them."""
    return not func._schema.is_mutable and all(output.alias_info is None for output in func._schema.returns)


def _all_new(outputs: Any, args: Any) -> bool:
    """Whether every output has a new storage. Some operations return views although their signature denies it."""
    seen = {tensor.untyped_storage()._cdata for tensor in tensors_in(args)}
    for tensor in tensors_in(outputs):
        key = tensor.untyped_storage()._cdata
        if key in seen or not tensor.is_meta:
            return False
        seen.add(key)
    return True


def _describe(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return (leaf.shape, leaf.stride(), leaf.dtype)
    return (type(leaf), leaf)  # with the type, because 1, 1.0 and True are equal and give different results


def _empty_like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _count_flops(func: Any, args: Any, kwargs: Any, outputs: Any) -> int:
    formula: Callable[..., int] | None = flop_registry.get(func._overloadpacket)
    if formula is None:
        return 0
    flops = formula(*args, **kwargs, out_val=outputs)
    if func._overloadpacket is _CONVOLUTION_BACKWARD and args[_GROUPS] > 1:
        # For the gradient of the weights, torch's formula counts every pair of an input and an output channel, and not
        # only pairs of one group.
        of_weights = formula(*args[: _GROUPS + 1], (False, args[_GROUPS + 1][1], False), out_val=outputs)
        flops -= of_weights - of_weights // args[_GROUPS]
    return flops
