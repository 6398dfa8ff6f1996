"""Whether a step in a stack of clients went as the same step does alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

# Between a step in a stack and the same alone, as a share of the length of the step: in all tensors together, and in
# any one. Rounding can take a single value over a kink of an activation, which a small tensor behind it feels.
ALLOWED, ALLOWED_IN_ONE = 0.02, 0.2
ROUNDING = 1e-6  # of the length of all that stands beside it, for what is zero but for rounding


@contextmanager
def full_precision() -> Iterator[None]:
    """Without the shortcuts that a run may take: what is compared must differ by rounding alone."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def close(a: object, b: object, before: object) -> bool:
    """Whether a step went the same way: what differs must be small beside what the step changed."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return _apart(a, b) <= ALLOWED * _length(b, before) + ROUNDING * _size(b)
    if isinstance(a, Mapping) and isinstance(b, Mapping) and isinstance(before, Mapping):
        return a.keys() == b.keys() and _all_close(a, b, before)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and isinstance(before, list | tuple):
        return len(a) == len(b) and all(close(*three) for three in zip(a, b, before))
    return a == b


def _all_close(a: Mapping[str, object], b: Mapping[str, object], before: Mapping[str, object]) -> bool:
    """The tensors together, and each of them.

    The gradient of a shift before a batch normalisation, for one, is zero, and what is computed for it has nothing to
    do with what another order of sums gives: it is measured by what stands beside it.
    """
    tensors = {key: (one, b[key]) for key, one in a.items() if isinstance(one, Tensor)}
    steps = {key: _length(b[key], before.get(key)) for key in tensors}
    apart = {key: _apart(*pair) for key, pair in tensors.items()}
    sizes = {key: _size(b[key]) for key in tensors}
    whole = math.hypot(*steps.values())
    together = math.hypot(*apart.values()) <= ALLOWED * whole + ROUNDING * math.hypot(*sizes.values())
    each = (apart[k] <= ALLOWED_IN_ONE * steps[k] + ROUNDING * (sizes[k] + whole) for k in tensors)
    return together and all(each) and all(close(a[key], b[key], before.get(key)) for key in a.keys() - tensors.keys())


def _apart(one: object, other: object) -> float:
    """The distance between two tensors; none where the plain step has gone wrong by itself."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.shape != other.shape:
        return math.inf
    return float((one.double() - other.double()).norm()) if other.isfinite().all() else 0.0


def _length(after: object, before: object) -> float:
    """How far a step went in a tensor of numbers that are not counts."""
    if not isinstance(after, Tensor) or not after.is_floating_point():
        return 0.0
    same = isinstance(before, Tensor) and before.shape == after.shape
    length = float((after.double() - before.double()).norm()) if same else _size(after)  # type: ignore[attr-defined]
    return length if math.isfinite(length) else 0.0


def _size(tensor: object) -> float:
    size = float(tensor.double().norm()) if isinstance(tensor, Tensor) else 0.0
    return size if math.isfinite(size) else 0.0
