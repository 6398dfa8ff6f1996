"""Outputs of common operations on meta tensors, without torch's own rules for them.

torch infers most outputs on meta tensors in Python, and the first such call imports its compiler and a package for
symbolic algebra: together they take longer than a short run. The rules below cover what most models and methods call,
on contiguous floats of one type. A rule returns None for everything else, and for wrong input; then torch is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undergrowth.core import tensors_in

_aten = torch.ops.aten
# Values of keyword arguments that do not change an output of contiguous floats.
_PLAIN = {
    "pin_memory": (None, False), "memory_format": (None, torch.preserve_format),
    "stable": (None, False, True), "descending": (False, True),
}  # fmt: skip
_IN_PLACE = {_aten._foreach_add_.List}


def infer_outputs(func: Any, args: Any, kwargs: Any) -> Any:
    """Meta tensors like the outputs of the operation `func`, or NotImplemented if no rule covers the call."""
    rule = _RULES.get(func)
    plain = all(
        isinstance(value, float | int) if name == "alpha" else value in _PLAIN.get(name, ())
        for name, value in kwargs.items()
    )
    if rule is None or not plain:
        return NotImplemented
    outputs = rule(*args)
    if outputs is None:
        return NotImplemented
    return None if func in _IN_PLACE else outputs


def _empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _is_contiguous(tensor: Tensor) -> bool:
    """Stricter than `Tensor.is_contiguous`: also dimensions of size one have the stride of a new tensor."""
    stride = 1
    for size, found in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if found != stride or not size:
            return False
        stride *= size
    return True


def _is_in_order(tensor: Tensor) -> bool:
    """Whether an operation of elements makes a contiguous tensor of it. Gradients are often expanded."""
    strides = [stride for stride in tensor.stride() if stride]
    usual = not strides or (min(tensor.shape) > 1 and strides == sorted(strides, reverse=True))
    return _is_contiguous(tensor) or (usual and tensor.numel() > 0)


def _is_channels_first(tensor: Tensor) -> bool:
    """Whether the channels of a tensor are not its innermost values."""
    return _is_contiguous(tensor) or tensor.stride(1) > min(tensor.stride())


def _float_type(*tensors: Tensor | None, is_usual: Callable[[Tensor], bool] = _is_contiguous) -> torch.dtype | None:
    """The common type of float tensors that are all usual; None if they are anything else."""
    given = [tensor for tensor in tensors if tensor is not None]
    dtype = given[0].dtype
    usual = all(tensor.dtype == dtype and is_usual(tensor) for tensor in given)
    return dtype if usual and dtype.is_floating_point else None


# Operations of elements -----------------------------------------------------------------------------------------------


def _elementwise(*args: Any) -> Tensor | None:
    """The operands are broadcast. A Python number does not change the type of floats."""
    tensors = list(tensors_in(args))
    dtype = _float_type(*tensors, is_usual=_is_in_order)
    if dtype is None or not all(arg is None or isinstance(arg, Tensor | bool | int | float) for arg in args):
        return None
    try:
        return _empty(np.broadcast_shapes(*(tensor.shape for tensor in tensors)), dtype)
    except ValueError:
        return None


def _comparison(*args: Any) -> Tensor | None:
    like = _elementwise(*args)
    return None if like is None else _empty(like.shape, torch.bool)


def _for_each(*args: Any) -> list[Tensor] | None:
    """An elementwise operation on lists of tensors, or on a list and a number."""
    lists = [arg for arg in args if isinstance(arg, list | tuple)]
    if len({len(tensors) for tensors in lists}) != 1:
        return None
    rest = [arg for arg in args if not isinstance(arg, list | tuple)]
    outputs = [_elementwise(*tensors, *rest) for tensors in zip(*lists, strict=True)]
    found = [output for output in outputs if output is not None]
    return found if found and len(found) == len(outputs) else None


def _softmax(values: Tensor, dim: int, half_to_float: bool) -> Tensor | None:
    return None if half_to_float else _elementwise(values)


def _softmax_backward(gradient: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> Tensor | None:
    return _elementwise(gradient, output) if dtype == output.dtype else None


# Rows and lists of tensors --------------------------------------------------------------------------------------------


def _rows(values: Tensor, indices: Sequence[Tensor | None]) -> Tensor | None:
    """The rows at one list of positions; of labels, too."""
    position = indices[0]
    usual = len(indices) == 1 and position is not None and position.dtype == torch.int64 and position.ndim == 1
    if position is None or not usual or not len(position) or not _is_contiguous(values):
        return None
    return _empty((len(position), *values.shape[1:]), values.dtype)


def _stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    dtype, shape = _float_type(*tensors), list(tensors[0].shape)
    if dtype is None or any(list(tensor.shape) != shape for tensor in tensors) or not -1 <= dim <= len(shape):
        return None
    shape.insert(dim % (len(shape) + 1), len(tensors))
    return _empty(shape, dtype)


def _concatenate(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    dtype, shape = _float_type(*tensors), list(tensors[0].shape)
    if dtype is None or not -len(shape) <= dim < len(shape):
        return None
    dim %= len(shape)
    sizes = [list(tensor.shape) for tensor in tensors]
    if any(size[:dim] + size[dim + 1 :] != shape[:dim] + shape[dim + 1 :] for size in sizes):
        return None  # also an empty vector among others, which torch leaves out
    shape[dim] = sum(size[dim] for size in sizes)
    return _empty(shape, dtype)


def _sort(values: Tensor, *_: Any) -> tuple[Tensor, Tensor] | None:
    """Values and positions of a vector, of labels or positions, too."""
    if values.ndim != 1 or not _is_contiguous(values):
        return None
    return _empty(values.shape, values.dtype), _empty(values.shape, torch.int64)


def _extremes(values: Tensor) -> tuple[Tensor, Tensor] | None:
    dtype = _float_type(values)
    return None if dtype is None else (_empty((), dtype), _empty((), dtype))


# Sums and products ----------------------------------------------------------------------------------------------------


def _reduction(values: Tensor, dims: Sequence[int] | None = None, keep: bool = False) -> Tensor | None:
    if not values.dtype.is_floating_point or not values.numel():
        return None
    reduced = {dim % values.ndim for dim in dims} if dims and values.ndim else set(range(values.ndim))
    sizes = [1 if dim in reduced else size for dim, size in enumerate(values.shape) if keep or dim not in reduced]
    return _empty(sizes, values.dtype)


def _product(first: Tensor, second: Tensor) -> Tensor | None:
    """Of two matrices, or of two batches of matrices; they may be transposed."""
    known = first.is_meta and second.is_meta and first.dtype == second.dtype and first.dtype.is_floating_point
    if not known or first.shape[-1] != second.shape[-2] or first.shape[:-2] != second.shape[:-2]:
        return None
    return _empty((*first.shape[:-1], second.shape[-1]), first.dtype)


def _product_and_bias(bias: Tensor, first: Tensor, second: Tensor) -> Tensor | None:
    output = _product(first, second)
    if output is None or bias.shape != output.shape[1:] or _float_type(bias) != output.dtype:
        return None
    return output


# Layers and losses ----------------------------------------------------------------------------------------------------


def _windows(
    sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[int] | None:
    """How many positions a kernel has in every dimension; None unless each argument names every dimension."""
    if not all(len(values) == len(sizes) for values in (kernel, stride, padding, dilation)):
        return None
    rows = zip(sizes, kernel, stride, padding, dilation, strict=True)
    counts = [(size + 2 * pad - gap * (width - 1) - 1) // step + 1 for size, width, step, pad, gap in rows]
    return counts if min(counts) > 0 else None


def _convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> Tensor | None:  # fmt: skip
    dtype = _float_type(x, weight, bias, is_usual=_is_channels_first)
    if dtype is None or transposed or x.ndim != weight.ndim or x.shape[1] != weight.shape[1] * groups:
        return None
    counts = _windows(x.shape[2:], weight.shape[2:], stride, padding, dilation)
    return None if counts is None else _empty((x.shape[0], weight.shape[0], *counts), dtype)


def _convolution_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int, mask: Sequence[bool],
) -> tuple[Tensor | None, ...] | None:  # fmt: skip
    dtype = _float_type(gradient, x, weight, is_usual=_is_channels_first)
    if dtype is None or transposed:
        return None
    shapes = (x.shape, weight.shape, bias_sizes)
    return tuple(
        _empty(shape, dtype) if wanted and shape is not None else None
        for shape, wanted in zip(shapes, mask, strict=True)
    )


def _max_pool(
    x: Tensor, kernel: Any, stride: Any = (), padding: Any = (0, 0), dilation: Any = (1, 1), ceil: bool = False
) -> tuple[Tensor, Tensor] | None:
    dtype = _float_type(x)
    if dtype is None or x.ndim != 4 or ceil:
        return None
    counts = _windows(x.shape[2:], kernel, stride or kernel, padding, dilation)
    if counts is None:
        return None
    shape = (*x.shape[:2], *counts)
    return _empty(shape, dtype), _empty(shape, torch.int64)


def _max_pool_backward(gradient: Tensor, x: Tensor, *_: Any) -> Tensor | None:
    dtype = _float_type(gradient, x)
    return None if dtype is None else _empty(x.shape, dtype)


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, variance: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor, Tensor] | None:  # fmt: skip
    dtype = _float_type(x, weight, bias, mean, variance)
    if dtype is None or x.ndim < 2:
        return None
    return _empty(x.shape, dtype), _empty(x.shape[1:2], dtype), _empty(x.shape[1:2], dtype)


def _batch_norm_backward(
    gradient: Tensor, x: Tensor, weight: Tensor | None, *rest: Any
) -> tuple[Tensor | None, ...] | None:
    """The last argument says which gradients are wanted: of x, weight and bias. Torch always makes that of x."""
    dtype = _float_type(gradient, x, weight)
    if dtype is None or not any(rest[-1]):
        return None
    of_weights = (_empty(x.shape[1:2], dtype) if wanted else None for wanted in rest[-1][1:])
    return _empty(x.shape, dtype), *of_weights


def _loss(x: Tensor, labels: Tensor, weight: Tensor | None, reduction: int, _: int) -> tuple[Tensor, Tensor] | None:
    """Of samples in rows. Reduction 0 is none."""
    dtype = _float_type(x)
    if dtype is None or x.ndim != 2 or weight is not None or labels.shape != x.shape[:1]:
        return None
    return _empty((() if reduction else x.shape[:1]), dtype), _empty((), dtype)


def _loss_backward(gradient: Tensor, x: Tensor, labels: Tensor, weight: Tensor | None, *_: Any) -> Tensor | None:
    dtype = _float_type(gradient, x)
    return None if dtype is None or x.ndim != 2 or weight is not None else _empty(x.shape, dtype)


_RULES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(
        [
            _aten.relu.default, _aten.neg.default, _aten.abs.default, _aten.sqrt.default, _aten.exp.default,
            _aten.log.default, _aten.sigmoid.default, _aten.tanh.default, _aten.threshold_backward.default,
            _aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor, _aten.mul.Scalar, _aten.div.Scalar,
            _aten.rsub.Scalar, _aten.pow.Tensor_Scalar, _aten.clamp_min.default, _aten.ones_like.default,
            _aten.zeros_like.default, _aten.lerp.Scalar, _aten.lerp.Tensor, _aten.special_entr.default,
        ],
        _elementwise,
    ),
    **dict.fromkeys([_aten.lt.Scalar, _aten.gt.Scalar, _aten.eq.Scalar, _aten.ne.Scalar], _comparison),
    **dict.fromkeys([_aten._foreach_add.List, _aten._foreach_add_.List, _aten._foreach_mul.Scalar], _for_each),
    **dict.fromkeys([_aten._softmax.default, _aten._log_softmax.default], _softmax),
    _aten._softmax_backward_data.default: _softmax_backward,
    _aten._log_softmax_backward_data.default: _softmax_backward,
    _aten.index.Tensor: _rows,
    _aten.stack.default: _stack,
    _aten.cat.default: _concatenate,
    **dict.fromkeys([_aten.sort.default, _aten.sort.stable], _sort),
    _aten.aminmax.default: _extremes,
    **dict.fromkeys([_aten.sum.default, _aten.mean.default, _aten.sum.dim_IntList, _aten.mean.dim], _reduction),
    **dict.fromkeys([_aten.mm.default, _aten.bmm.default], _product),
    _aten.addmm.default: _product_and_bias,
    _aten.convolution.default: _convolution,
    _aten.convolution_backward.default: _convolution_backward,
    _aten.max_pool2d_with_indices.default: _max_pool,
    _aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
    _aten.native_batch_norm.default: _batch_norm,
    _aten.native_batch_norm_backward.default: _batch_norm_backward,
    _aten.nll_loss_forward.default: _loss,
    _aten.nll_loss_backward.default: _loss_backward,
}  # fmt: skip
