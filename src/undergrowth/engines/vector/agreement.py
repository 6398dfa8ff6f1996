"""Whether a step in a stack of clients agrees with the same step of each client alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from undergrowth.core import tensors_in

# Differences allowed between a step in a stack and the same step alone, as a fraction of the length of the step: over
# all tensors together, and in each one. Rounding can move a value across the kink of an activation, which shows in a
# small tensor after it.
MAX_DIFFERENCE, MAX_DIFFERENCE_IN_ONE = 0.02, 0.2
ROUNDING = 1e-6  # allowed relative to the norm of all tensors in the mapping, for values that are zero but for rounding


@contextmanager
def full_precision() -> Iterator[None]:
    """Disables TF32 in the block, so that compared values differ by rounding alone."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


# What turns values of tensors into numbers of Python.
READS = {
    Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.is_nonzero, Tensor.equal, Tensor.allclose, Tensor.__bool__,
    Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.__contains__, Tensor.__array__, torch.is_nonzero,
    torch.equal, torch.allclose,
}  # fmt: skip


# Libraries whose modules read numbers, but only to leave work out that changes nothing, such as a mask of ones.
HARMLESS = ("transformers",)


class RefuseReads(TorchFunctionMode):
    """While active, a module that turns a number which depends on `inputs` into one of Python raises an error.

    In a stack that number would be of the samples of all clients, and what it decides be the same for all: how often a
    layer runs, or which one. The first step of two clients may agree all the same.
    """

    def __init__(self, inputs: Iterable[Tensor]) -> None:
        super().__init__()
        self._running: list[nn.Module] = []  # modules in each other
        self._dependent = {id(each): each for each in inputs}  # kept, because the number of a lost one is used again

    def __enter__(self) -> RefuseReads:
        self._hooks = [
            register_module_forward_pre_hook(lambda module, *_: self._running.append(module)),
            register_module_forward_hook(lambda *_: self._leave(), always_call=True),
        ]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()

    def _leave(self) -> None:
        self._running.pop()

    def _refuses(self) -> bool:
        libraries = {type(module).__module__.partition(".")[0] for module in self._running}
        return bool(libraries) and libraries.isdisjoint(HARMLESS)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        depends = any(id(each) in self._dependent for each in tensors_in((args, kwargs)))
        if depends and function in READS and self._refuses():
            raise NotImplementedError("a module reads a number that depends on its samples")
        found = function(*args, **(kwargs or {}))
        if depends:
            self._dependent.update((id(each), each) for each in tensors_in(found))
        return found


def agree(a: object, b: object, before: object) -> bool:
    """Whether a step from `before` led to the same values in `a` and `b`, relative to what the step changed.

    Not a `map_leaves`, because the tensors of a mapping or a list are judged together.
    """
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return _distance(a, b) <= MAX_DIFFERENCE * _step_length(b, before) + ROUNDING * _norm(b)
    if isinstance(a, Mapping) and isinstance(b, Mapping) and isinstance(before, Mapping):
        return a.keys() == b.keys() and _mappings_agree(a, b, before)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and isinstance(before, list | tuple):
        return len(a) == len(b) and _mappings_agree(
            *({str(at): each for at, each in enumerate(v)} for v in (a, b, before))
        )
    return a == b


def _mappings_agree(a: Mapping[str, object], b: Mapping[str, object], before: Mapping[str, object]) -> bool:
    """Judges the tensors of a mapping together, and each of them.

    The gradient of a bias before batch normalisation, for example, is zero, and its computed value is nothing but
    rounding: it is measured against the tensors next to it.
    """
    tensors = {key: (one, b[key]) for key, one in a.items() if isinstance(one, Tensor)}
    steps = {key: _step_length(b[key], before.get(key)) for key in tensors}
    distances = {key: _distance(*pair) for key, pair in tensors.items()}
    norms = {key: _norm(b[key]) for key in tensors}
    whole_step = math.hypot(*steps.values())
    allowed = MAX_DIFFERENCE * whole_step + ROUNDING * math.hypot(*norms.values())
    together = math.hypot(*distances.values()) <= allowed
    each = (distances[k] <= MAX_DIFFERENCE_IN_ONE * steps[k] + ROUNDING * (norms[k] + whole_step) for k in tensors)
    rest = a.keys() - tensors.keys()
    return together and all(each) and all(agree(a[key], b[key], before.get(key)) for key in rest)


def _distance(one: object, other: object) -> float:
    """The norm of the difference; 0 if the plain step itself is not finite."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.shape != other.shape:
        return math.inf
    return float((one.double() - other.double()).norm()) if other.isfinite().all() else 0.0


def _step_length(after: object, before: object) -> float:
    """How far a step moved a floating-point tensor; 0 for counters."""
    if not isinstance(after, Tensor) or not after.is_floating_point():
        return 0.0
    if isinstance(before, Tensor) and before.shape == after.shape:
        length = float((after.double() - before.double()).norm())
        return length if math.isfinite(length) else 0.0
    return _norm(after)


def _norm(tensor: object) -> float:
    norm = float(tensor.double().norm()) if isinstance(tensor, Tensor) else 0.0
    return norm if math.isfinite(norm) else 0.0
