"""Carries of many clients, put on top of each other. What all of them share is not copied: its first stride is 0."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from undergrowth.core import Carry

MAPPINGS = (dict, Mapping)  # nearly all are dictionaries, and asking for the protocol takes long
FINISH = "finish"  # the entry of a carry that no step looks at


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
    """One carry with the client as the first dimension of every tensor."""
    return {name: _stacked([carry[name] for carry in carries]) for name in carries[0] if name != FINISH}


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


def moved_out(tree: Any) -> Any:
    """The same carry in memory of its own."""
    return changed(tree, lambda value: value.clone() if value.stride(0) else value)


def wider(tree: Any, fill: Tensor) -> Any:
    """The carry of the clients at these places, some of them several times."""
    return changed(tree, lambda value: value.index_select(0, fill) if value.stride(0) else _shared(value, len(fill)))


def empty(tree: Any, clients: int) -> Any:
    """Memory for a carry of so many clients. One client shares nothing."""

    def memory(value: Tensor) -> Tensor:
        own = value.stride(0) or clients == 1
        return value.new_empty(clients, *value.shape[1:]) if own else _shared(value, clients)

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


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether clients share this. On a CPU their own copies of the same count too, since a resumed run has copies where
    a whole one has the same; a GPU would have to be waited for."""
    return one is other or (not one.is_cuda and torch.equal(one, other))


def _stacked(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, Tensor):
        if all(_equal(value, first) for value in values):
            return first.expand(len(values), *first.shape)
        return torch.stack(values)
    if isinstance(first, MAPPINGS):
        return {name: _stacked([value[name] for value in values]) for name in first}
    if isinstance(first, list | tuple):
        return type(first)(_stacked(list(each)) for each in zip(*values))
    return first
