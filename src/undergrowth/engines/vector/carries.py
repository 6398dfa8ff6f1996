"""Carries of many clients, put on top of each other. What all of them share is not copied: its first stride is 0."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from undergrowth.core import Carry, tensors_in
from undergrowth.core.names import FINISH

MAPPINGS = (dict, Mapping)  # nearly all are dictionaries, and asking for the protocol takes long


def changed(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same tree with other tensors."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, MAPPINGS):
        return {name: changed(value, change) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(changed(value, change) for value in tree)
    return tree


def stacked(carries: Sequence[Carry]) -> Carry:
    """One carry with the client as the first dimension of every tensor.

    Clients share what is equal, not only what is the same: a resumed run has copies where a whole one has the same.
    """
    tree = {name: _stacked([carry[name] for carry in carries]) for name in carries[0] if name != FINISH}
    own = [value for value in tensors_in(tree) if value.stride(0)]
    if not own:
        return tree
    equal = torch.stack([(value == value[:1]).all() for value in own]).tolist()  # at once: a GPU is waited for
    shared = {id(value): _shared(value[:1].clone(), len(value)) for value, yes in zip(own, equal) if yes}
    return changed(tree, lambda value: shared.get(id(value), value))  # type: ignore[no-any-return]


def part(tree: Any, index: int | slice) -> Any:
    """The carry of some clients of a stack, or of one."""
    return changed(tree, lambda value: value[index])


def apart(tree: Any, clients: int) -> list[Any]:
    """The carries of all clients of a stack, one by one."""
    if isinstance(tree, Tensor):
        return list(tree.unbind(0)) if tree.stride(0) else [tree[0]] * clients
    if isinstance(tree, MAPPINGS):
        columns = [apart(value, clients) for value in tree.values()]
        return [dict(zip(tree, row)) for row in zip(*columns)] if columns else [{} for _ in range(clients)]
    if isinstance(tree, list | tuple):
        columns = [apart(value, clients) for value in tree]
        return [type(tree)(row) for row in zip(*columns)] if columns else [tree] * clients
    return [tree] * clients


def copied(tree: Any, clients: int) -> Any:
    """A copy of what all clients share, and memory for the rest, for so many. One client shares nothing."""

    def memory(value: Tensor) -> Tensor:
        own = value.stride(0) or clients == 1
        return value.new_empty(clients, *value.shape[1:]) if own else _shared(value[:1].clone(), clients)

    return changed(tree, memory)


def signature(tree: Any) -> Hashable:
    """Shapes of tensors, and the value of everything else: a step may depend on both."""
    if isinstance(tree, Tensor):
        return tree.shape, tree.dtype
    if isinstance(tree, MAPPINGS):
        # Tensors at once: most of a carry are dictionaries of them, and a call for each takes as long again.
        return tuple(
            [
                (name, value.shape, value.dtype) if isinstance(value, Tensor) else (name, signature(value))
                for name, value in tree.items()
            ]
        )
    if isinstance(tree, list | tuple):
        return tuple(signature(value) for value in tree)
    return type(tree), tree


def _shared(value: Tensor, clients: int) -> Tensor:
    return value[:1].expand(clients, *value.shape[1:])


def _stacked(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, Tensor):
        if all(value is first for value in values):
            return first.expand(len(values), *first.shape)
        return torch.stack(values)
    if isinstance(first, MAPPINGS):
        return {name: _stacked([value[name] for value in values]) for name in first}
    if isinstance(first, list | tuple):
        return type(first)(_stacked(list(each)) for each in zip(*values))
    return first
