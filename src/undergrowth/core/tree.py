"""State trees: nested plain containers of tensors and numbers, and their form on disk.

Server state, device state and whole checkpoints are such trees. Nothing in them needs pickle: `pack` splits a
tree into named tensors and a JSON text, `unpack` puts it together again, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from undergrowth.core.packet import Packet

State = dict[str, Any]  # values: tensors, numbers, texts, None, packets, and lists, tuples or dicts of those
V = TypeVar("V")
_PLAIN = (bool, int, float, str)  # made once: a million small states are packed


class Each(Mapping[str, V]):
    """A mapping whose values are read when they are asked for, and not kept: a thousand models need not fit at once."""

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


def pack(tree: Any) -> tuple[dict[str, Tensor], str]:
    """The distinct tensors of a tree, and a JSON text that says where each belongs.

    A tensor that stands in several places (a model that was sent to a hundred devices) is stored once.
    """
    tensors: dict[str, Tensor] = {}
    return tensors, json.dumps(_encoded(tree, tensors, {}))


def unpack(tensors: Mapping[str, Tensor], text: str) -> Any:
    """The tree that `pack` took apart."""
    return _decoded(json.loads(text), tensors)


# Not functions inside of those two: such a function would refer to itself, and hold the tensors until Python looks
# for garbage.


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
                raise TypeError(f"a state may hold mappings by text or number, not by {type(key).__name__}")
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


def moved(tree: Any, device: str | torch.device) -> Any:
    """The same tree with every tensor on `device`."""
    if isinstance(tree, Tensor):
        return tree.to(device)
    if isinstance(tree, Packet):
        return Packet({k: v.to(device) for k, v in tree.tensors.items()}, tree.scalars, tree.tags)
    if isinstance(tree, Mapping):
        return {key: moved(value, device) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(moved(value, device) for value in tree)
    return tree
