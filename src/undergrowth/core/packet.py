"""Packet: everything that crosses a link, in either direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]  # a model's parameters and persistent buffers, by state-dict name


@dataclass(frozen=True)
class Packet:
    """Tensors, numbers and short texts, each by name. A number is a float, or an integer of 64 bits such as a seed.

    A name may be a path: ``Packet.join({"base": a, "few-shot": b})`` puts two packets into one, and
    ``packet.part("base")`` returns the first again. So a method can send parts that are reduced in different ways.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of payload. Names, types and shapes are not counted, because both ends know them."""
        tensors = sum(t.numel() * t.element_size() for t in self.tensors.values())
        return tensors + 8 * len(self.scalars) + sum(len(tag.encode()) for tag in self.tags.values())

    @cached_property
    def signature(self) -> tuple[tuple[str, torch.Size, torch.dtype], ...]:
        """Names, shapes and types of the tensors."""
        return tuple((name, value.shape, value.dtype) for name, value in self.tensors.items())

    def part(self, name: str) -> Packet:
        """The entries under ``name/``, without that prefix; an empty packet if there are none."""
        return self.parts().get(name, Packet())

    def parts(self) -> dict[str, Packet]:
        """The entries under each first prefix, as one packet per prefix. Names without a prefix are left out."""
        found: dict[str, tuple[dict[str, Tensor], dict[str, float], dict[str, str]]] = {}
        for kind, entries in enumerate((self.tensors, self.scalars, self.tags)):
            for path, value in entries.items():
                head, slash, rest = path.partition("/")
                if slash:
                    found.setdefault(head, ({}, {}, {}))[kind][rest] = value  # type: ignore[assignment]
        return {head: Packet(*entries) for head, entries in found.items()}

    @staticmethod
    def join(parts: Mapping[str, Packet]) -> Packet:
        """One packet with each part under its name."""
        return Packet(
            {f"{name}/{k}": v for name, part in parts.items() for k, v in part.tensors.items()},
            {f"{name}/{k}": v for name, part in parts.items() for k, v in part.scalars.items()},
            {f"{name}/{k}": v for name, part in parts.items() for k, v in part.tags.items()},
        )
