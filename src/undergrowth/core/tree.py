"""State trees: nested plain containers of tensors and numbers, and their form on disk.

Server state, device state and whole checkpoints are such trees. Nothing in them needs pickle: `pack` splits a
tree into named tensors and a JSON text, `unpack` puts it together again, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from undergrowth.core.packet import Packet

State = dict[str, Any]  # values: tensors, numbers, texts, None, packets, and lists, tuples or dicts of those


def pack(tree: Any) -> tuple[dict[str, Tensor], str]:
    """The distinct tensors of a tree, and a JSON text that says where each belongs.

    A tensor that stands in several places (a model that was sent to a hundred devices) is stored once.
    """
    tensors: dict[str, Tensor] = {}
    seen: dict[int, str] = {}

    def encode(node: Any) -> Any:
        if node is None or isinstance(node, bool | int | float | str):
            return node
        if isinstance(node, Tensor):
            if id(node) not in seen:
                seen[id(node)] = str(len(tensors))
                tensors[seen[id(node)]] = node
            return {"tensor": seen[id(node)]}
        if isinstance(node, Packet):
            return {"packet": [encode(dict(node.tensors)), dict(node.scalars), dict(node.tags)]}
        if isinstance(node, Mapping):
            # Pairs rather than an object: keys may be numbers, and their order must survive.
            for key in node:
                if not isinstance(key, str | int | float):
                    raise TypeError(f"a state may hold mappings by text or number, not by {type(key).__name__}")
            return {"map": [[key, encode(value)] for key, value in node.items()]}
        if isinstance(node, list | tuple):
            kind = "list" if isinstance(node, list) else "tuple"
            return {kind: [encode(value) for value in node]}
        raise TypeError(f"a state may hold tensors, numbers, texts and plain containers, not {type(node).__name__}")

    return tensors, json.dumps(encode(tree))


def unpack(tensors: Mapping[str, Tensor], text: str) -> Any:
    """The tree that `pack` took apart."""

    def decode(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        ((kind, value),) = node.items()
        if kind == "tensor":
            return tensors[value]
        if kind == "packet":
            return Packet(decode(value[0]), value[1], value[2])
        if kind == "map":
            return {key: decode(item) for key, item in value}
        items = [decode(item) for item in value]
        return items if kind == "list" else tuple(items)

    return decode(json.loads(text))


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
