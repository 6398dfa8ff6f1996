"""Carries of several clients as one. A tensor that all of them share is not copied: its first stride is 0.

`unstack` transposes, which no map over leaves does. `signature` has the values of all leaves, unlike that of pytrees,
and makes no call per tensor, which would take 10 to 20 % longer: it runs for every client.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from undergrowth.core import Carry, map_leaves, map_tensors, tensors_in
from undergrowth.core.names import FINISH
from undergrowth.core.pytree import MAPPINGS


def stack_carries(carries: Sequence[Carry]) -> Carry:
    """One carry with the client as the first dimension of every tensor.

    Clients share equal tensors, not only identical ones: a resumed run has copies where others have one object.
    """
    first, *others = [{name: value for name, value in carry.items() if name != FINISH} for carry in carries]
    stack: Carry = map_leaves(_stack, first, *others)
    own = [value for value in tensors_in(stack) if value.stride(0)] if others else []
    if not own:
        return stack
    equal = torch.stack([(value == value[:1]).all() for value in own]).tolist()  # one transfer from a GPU
    shared = {id(v): _share(v[:1].clone(), len(v)) for v, is_equal in zip(own, equal, strict=True) if is_equal}
    result: Carry = map_tensors(lambda value: shared.get(id(value), value), stack)
    return result


def slice_stack(stack: Any, index: int | slice) -> Any:
    """The carry of one client of a stack, or of several."""
    return map_tensors(lambda value: value[index], stack)


def unstack(stack: Any, clients: int) -> list[Any]:
    """The carries of all clients of a stack, one by one."""
    if isinstance(stack, Tensor):
        return list(stack.unbind(0)) if stack.stride(0) else [stack[0]] * clients
    if isinstance(stack, MAPPINGS):
        columns = [unstack(value, clients) for value in stack.values()]
        if not columns:
            return [{} for _ in range(clients)]
        return [dict(zip(stack, row, strict=True)) for row in zip(*columns, strict=True)]
    if isinstance(stack, list | tuple):
        columns = [unstack(value, clients) for value in stack]
        return [type(stack)(row) for row in zip(*columns, strict=True)] if columns else [stack] * clients
    return [stack] * clients


def allocate_like(stack: Any, clients: int) -> Any:
    """Memory for the carries of `clients` clients, with a copy of what all share. One client shares nothing."""

    def allocate(value: Tensor) -> Tensor:
        own = value.stride(0) or clients == 1
        return value.new_empty(clients, *value.shape[1:]) if own else _share(value[:1].clone(), clients)

    return map_tensors(allocate, stack)


def signature(pytree: Any) -> Hashable:
    """Shapes and dtypes of tensors, and the value of every other leaf: a step may depend on all of these."""
    if isinstance(pytree, Tensor):
        return pytree.shape, pytree.dtype
    if isinstance(pytree, MAPPINGS):
        # Tensors without a call each: most mappings in a carry hold nothing else.
        return tuple(
            [
                (name, value.shape, value.dtype) if isinstance(value, Tensor) else (name, signature(value))
                for name, value in pytree.items()
            ]
        )
    if isinstance(pytree, list | tuple):
        return tuple(signature(value) for value in pytree)
    return type(pytree), pytree


def _share(value: Tensor, clients: int) -> Tensor:
    return value[:1].expand(clients, *value.shape[1:])


def _stack(first: Any, *others: Any) -> Any:
    if not isinstance(first, Tensor):
        return first
    if all(value is first for value in others):
        return first.expand(1 + len(others), *first.shape)
    return torch.stack((first, *others))
