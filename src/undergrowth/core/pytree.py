"""Pytrees: nested plain containers of tensors and numbers. One walker for all of them, and their form on disk.

Server state, device state and whole checkpoints are pytrees. Nothing in them needs pickle: `pack` splits a pytree
into named tensors and a JSON text, and `unpack` puts it together again, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from undergrowth.core.packet import Packet

State = dict[str, Any]  # values: tensors, numbers, texts, None, packets, and lists, tuples or dicts of those
V = TypeVar("V")
_PLAIN = (bool, int, float, str)  # one tuple for all calls, because a million small states are packed
MAPPINGS = (dict, Mapping)  # dict first: the check against the abstract class is slow
_SEQUENCES = (list, tuple)


def map_leaves(function: Callable[..., Any], pytree: Any, *others: Any) -> Any:
    """A pytree of the same form whose leaves are `function(leaf, …)`.

    Leaves are tensors and everything else that is not a dict, list, tuple or packet. `others` have the same form as
    `pytree`; their leaves are the further arguments. Of a packet only the tensors are leaves.
    """
    if isinstance(pytree, Tensor):
        return function(pytree, *others)
    if isinstance(pytree, _SEQUENCES):
        if others:
            values = [map_leaves(function, *row) for row in zip(pytree, *others, strict=True)]
        else:
            values = [map_leaves(function, value) for value in pytree]
        # A named tuple takes its values one by one.
        return type(pytree)(*values) if hasattr(pytree, "_fields") else type(pytree)(values)
    if isinstance(pytree, MAPPINGS):
        if not others:
            return {name: map_leaves(function, value) for name, value in pytree.items()}
        return {name: map_leaves(function, value, *(o[name] for o in others)) for name, value in pytree.items()}
    if isinstance(pytree, Packet):
        tensors = map_leaves(function, pytree.tensors, *(other.tensors for other in others))
        return Packet(tensors, pytree.scalars, pytree.tags)
    return function(pytree, *others)


def map_tensors(function: Callable[[Tensor], Any], pytree: Any) -> Any:
    """A pytree of the same form with `function(tensor)` in place of every tensor."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, pytree)


def tensors_in(pytree: Any) -> Iterator[Tensor]:
    """All tensors of a pytree, in order."""
    if isinstance(pytree, Tensor):
        yield pytree
    elif isinstance(pytree, _SEQUENCES):
        for value in pytree:
            yield from tensors_in(value)
    elif isinstance(pytree, MAPPINGS):
        for value in pytree.values():
            yield from tensors_in(value)
    elif isinstance(pytree, Packet):
        yield from pytree.tensors.values()


def signature(pytree: Any, describe: Callable[[Any], Hashable]) -> Hashable:
    """A hashable description of a pytree: its containers and keys, and `describe(leaf)` for every leaf.

    Of a packet it contains the tensors as leaves, the names of the scalars without their values, and the tags.
    """
    # Without a call per tensor, because a simulation describes the state of a device before every job.
    if isinstance(pytree, _SEQUENCES):
        return (list, *[describe(v) if isinstance(v, Tensor) else signature(v, describe) for v in pytree])
    if isinstance(pytree, MAPPINGS):
        values = [describe(v) if isinstance(v, Tensor) else signature(v, describe) for v in pytree.values()]
        return (dict, *pytree, *values)
    if isinstance(pytree, Packet):
        return (signature(pytree.tensors, describe), tuple(pytree.scalars), tuple(pytree.tags.items()))
    return describe(pytree)


def move_to(pytree: Any, torch_device: str | torch.device) -> Any:
    """The same pytree with every tensor on `torch_device`."""
    return map_tensors(lambda tensor: tensor.to(torch_device), pytree)


class LazyMapping(Mapping[str, V]):
    """A mapping that reads a value on access and does not keep it: a thousand models need not fit into memory."""

    def __init__(self, names: Collection[str], read: Callable[[str], V]) -> None:
        self._names = names
        self._read = read

    def __getitem__(self, name: str) -> V:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def pack(pytree: Any) -> tuple[dict[str, Tensor], str]:
    """The distinct tensors of a pytree, and a JSON text that says where each belongs.

    A tensor that occurs in several places (a model that was sent to a hundred devices) is stored once.
    """
    tensors: dict[str, Tensor] = {}
    return tensors, json.dumps(_encoded(pytree, tensors, {}))


def unpack(tensors: Mapping[str, Tensor], text: str) -> Any:
    """The pytree that `pack` was given."""
    return _decoded(json.loads(text), tensors)


# Not nested in those two: a nested recursive function refers to itself, and its tensors would stay in memory until the
# next garbage collection.


def _encoded(node: Any, tensors: dict[str, Tensor], seen: dict[int, str]) -> Any:
    if node is None or isinstance(node, _PLAIN):
        return node
    if isinstance(node, Tensor):
        if id(node) not in seen:
            seen[id(node)] = str(len(tensors))
            tensors[seen[id(node)]] = node
        return {"tensor": seen[id(node)]}
    if isinstance(node, Packet):
        return {"packet": [_encoded(dict(node.tensors), tensors, seen), dict(node.scalars), dict(node.tags)]}
    if isinstance(node, Mapping):
        # Pairs rather than an object: keys may be numbers, and their order must survive.
        for key in node:
            if not isinstance(key, _PLAIN):
                raise TypeError(f"a state may hold mappings with texts or numbers as keys, not {type(key).__name__}")
        return {"map": [[key, _encoded(value, tensors, seen)] for key, value in node.items()]}
    if isinstance(node, list | tuple):
        kind = "list" if isinstance(node, list) else "tuple"
        return {kind: [_encoded(value, tensors, seen) for value in node]}
    raise TypeError(f"a state may hold tensors, numbers, texts and plain containers, not {type(node).__name__}")


def _decoded(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(node, dict):
        return node
    ((kind, value),) = node.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "packet":
        return Packet(_decoded(value[0], tensors), value[1], value[2])
    if kind == "map":
        return {key: _decoded(item, tensors) for key, item in value}
    items = [_decoded(item, tensors) for item in value]
    return items if kind == "list" else tuple(items)
