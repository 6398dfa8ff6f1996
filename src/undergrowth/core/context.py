"""Context: who works in which round, and the only source of randomness."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import torch


class Context(NamedTuple):  # a tuple, because a simulation makes millions of them
    """A node at work. The same context gives the same random numbers on every engine.

    `round` is the version of the server that asked. `turn` counts how often this node was asked before: an
    asynchronous server may ask one device twice within a version. A server also gets the number of `devices` in the
    whole federation and of their `samples`, and how many of its children were `asked`: those that answered in this
    round or may still do.
    """

    seed: int
    node: str
    round: int
    turn: int = 0
    devices: int = 0
    samples: int = 0
    asked: int = 0

    def key(self, purpose: str) -> int:
        """A pseudo-random number that depends on seed, node, round, turn and `purpose`."""
        text = f"{self.seed}|{self.node}|{self.round}|{self.turn}|{purpose}"
        # 63 bits: torch.Generator takes a signed seed.
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1

    def float_key(self, purpose: str) -> float:
        """Like `key`, but with 48 bits, so that a packet can carry it: a float has them exactly."""
        return float(self.key(purpose) >> 15)

    def seed_torch(self, torch_device: torch.device) -> None:
        """Seeds torch's global generators (CPU and `torch_device`) from this context; dropout reads them."""
        key = self.key("noise")
        torch.default_generator.manual_seed(key)
        if torch_device.type == "cuda":
            torch.cuda.default_generators[torch_device.index or 0].manual_seed(key)

    def generator(self, purpose: str) -> torch.Generator:
        """A fresh CPU generator for `purpose`; a second call returns one with the same numbers."""
        return torch.Generator().manual_seed(self.key(purpose))
