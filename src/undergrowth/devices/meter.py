"""Meter: runs code on tensors without values, and counts the FLOPs and the peak of live bytes.

A meta tensor has a shape and a type but no values, so code that runs on meta tensors costs no arithmetic and no
memory and still calls every operation it would call on a device. torch's FakeTensorMode does the same on top of
meta tensors; the meter does without it for two reasons. It remembers the shapes that an operation gives, which
makes a step of a Wide ResNet ten times faster to trace, and it lets tensors with and without values meet, so
that labels can stay real where a client looks at them.
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

from undergrowth.core import tensors_in

# An operation, with the shapes of its inputs → the shapes of its outputs, and its FLOPs. Shared by all meters:
# methods differ in few operations. Emptied when it is full, which only a search over many models would see.
_KNOWN: dict[Hashable, tuple[Any, int]] = {}
_KNOWN_LIMIT = 200_000

_READ = torch.ops.aten._local_scalar_dense.default  # what `item`, `float`, `bool` and `if` come down to
_COPY = torch.ops.aten._to_copy.default


class Meter(TorchDispatchMode):
    """Counts while it is entered. `flops` are torch's own formulas: matrix products and convolutions.

    `guess`: a number read out of a tensor without values is 1; otherwise reading one is an error.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would load its compiler at the first operation, a second in every run

    def __init__(self, guess: bool = False) -> None:
        super().__init__()
        self.guess = guess
        self.flops = 0
        self.calls = 0  # operations
        self.live = 0
        self.peak = 0
        self._storages: dict[int, tuple[int, object]] = {}

    def hold(self, tree: Any) -> None:
        """Counts tensors that were there before: weights, a device's own state."""
        for tensor in tensors_in(tree):
            self._see(tensor, tensor.untyped_storage().nbytes())

    def ignore(self, *tensors: Tensor) -> None:
        """Leaves tensors, and all views of them, out of the count."""
        for tensor in tensors:
            self._see(tensor, 0)

    def release(self, *tensors: Tensor) -> None:
        """Takes tensors out of the count again, as if they had never been in it."""
        for tensor in tensors:
            key = tensor.untyped_storage()._cdata
            if key in self._storages:
                size, reference = self._storages[key]
                self._storages[key] = (0, reference)
                self.live, self.peak = self.live - size, self.peak - size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _valueless(args, kwargs):
            if func is _READ and self.guess:
                return 1.0 if args[0].is_floating_point() else args[0].dtype is torch.bool or 1
            if func is _COPY:
                kwargs = {**kwargs, "device": torch.device("meta")}  # there are no values to bring to another place
            args, kwargs = _without_values(args), {k: _without_values(v) for k, v in kwargs.items()}
            outputs, flops = _shapes_only(func, args, kwargs)
        else:
            outputs = func(*args, **kwargs)
            flops = _flops(func, args, kwargs, outputs)
        self.flops += flops
        self.calls += 1
        for tensor in tensors_in(outputs):
            self._see(tensor)
        return outputs

    def _see(self, tensor: Tensor, size: int | None = None) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._storages:
            size = storage.nbytes() if size is None else size
            # The reference tells when the last tensor on the storage is gone, those saved for backward included.
            self._storages[key] = (size, weakref.ref(storage, lambda _: self._gone(key)))
            self.live += size
            self.peak = max(self.peak, self.live)

    def _gone(self, key: int) -> None:
        self.live -= self._storages.pop(key)[0]


def _valueless(args: Any, kwargs: Any) -> bool:
    if "device" in kwargs and kwargs["device"] is not None and kwargs["device"].type == "meta":
        return True
    return any(tensor.is_meta for tensor in tensors_in(args)) or any(t.is_meta for t in tensors_in(kwargs))


def _without_values(value: Any) -> Any:
    if isinstance(value, Tensor):
        # A single number may stay: operations take one from anywhere, and its type counts for less.
        return value if value.is_meta or value.ndim == 0 else value.to("meta")
    if isinstance(value, list | tuple):
        return type(value)(_without_values(item) for item in value)
    return None if isinstance(value, torch.Generator) else value  # a generator is for one kind of device


def _shapes_only(func: Any, args: Any, kwargs: Any) -> tuple[Any, int]:
    """The outputs of an operation on meta tensors and its FLOPs, from memory where that can be."""
    key = (func, _shape_of(args), tuple((name, _shape_of(value)) for name, value in kwargs.items()))
    known = _KNOWN.get(key) if _pure(func) else None
    if known is not None:
        return _tensors_of(known[0]), known[1]
    outputs = func(*args, **kwargs)
    flops = _flops(func, args, kwargs, outputs)
    if _pure(func) and _all_new(outputs, args):
        if len(_KNOWN) >= _KNOWN_LIMIT:
            _KNOWN.clear()
        _KNOWN[key] = (_shape_of(outputs), flops)
    return outputs, flops


@cache
def _pure(func: Any) -> bool:
    """Whether an operation neither changes its inputs nor, by its signature, gives views of them."""
    return not func._schema.is_mutable and all(output.alias_info is None for output in func._schema.returns)


def _all_new(outputs: Any, args: Any) -> bool:
    """Whether every output has memory of its own. Some operations give views and do not say so."""
    seen = {tensor.untyped_storage()._cdata for tensor in tensors_in(args)}
    for tensor in tensors_in(outputs):
        key = tensor.untyped_storage()._cdata
        if key in seen or not tensor.is_meta:
            return False
        seen.add(key)
    return True


def _shape_of(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return (Tensor, value.shape, value.stride(), value.dtype)
    if isinstance(value, list | tuple):
        return (list, *[_shape_of(item) for item in value])
    return (type(value), value)  # the type too: 1, 1.0 and True are equal and give other results


def _tensors_of(shape: Any) -> Any:
    kind = shape[0]
    if kind is Tensor:
        return torch.empty_strided(shape[1], shape[2], dtype=shape[3], device="meta")
    if kind is list:
        return [_tensors_of(item) for item in shape[1:]]
    return shape[1]


def _flops(func: Any, args: Any, kwargs: Any, outputs: Any) -> int:
    formula: Callable[..., int] | None = flop_registry.get(func._overloadpacket)
    return 0 if formula is None else formula(*args, **kwargs, out_val=outputs)
